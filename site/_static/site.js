// What scrolls sideways must be reached by the keyboard, too.
function reachable() {
  for (const part of document.querySelectorAll(".cell_output .output, .table-wide, .cell_output pre")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
