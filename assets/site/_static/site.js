// A picture is a drawing until it comes near the window: then plotly.js, which the site brings along, draws it live.

const HERE = document.currentScript.src;

let library;
function loadPlotly() {
  library ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = new URL("plotly.min.js", HERE);
    script.onload = done;
    script.onerror = failed;
    document.head.append(script);
  });
  return library;
}

async function bringToLife(figure) {
  await loadPlotly();
  const { data, layout, config } = JSON.parse(figure.querySelector("script").textContent);
  const chart = figure.querySelector(".chart");
  chart.hidden = false;
  figure.querySelector("img").remove();
  drawChart(chart.id, data, layout, config);
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      bringToLife(target).catch((error) => console.error("The picture stays a drawing.", error));
    }
  },
  { rootMargin: "600px" },
);
document.querySelectorAll(".inflight-figure").forEach((figure) => near.observe(figure));

// What scrolls sideways must be reached by the keyboard, too.
function reachable() {
  for (const part of document.querySelectorAll(".cell_output .output, .table-wide, .cell_output pre")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
