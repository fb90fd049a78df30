// What scrolls sideways must be reached by the keyboard, too.
function reachable() {
  for (const part of document.querySelectorAll(".cell_output .output, .table-wrapper, pre")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
// The theme has two asides, and a screen reader names them.
document.querySelector(".sidebar-drawer").ariaLabel = "The course";
document.querySelector(".toc-drawer").ariaLabel = "On this page";
