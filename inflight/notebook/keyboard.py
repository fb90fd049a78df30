"""Keys and names: what a group of controls needs on the page that ipywidgets has no trait for.

JupyterLab takes keys for its own shortcuts wherever the focus is, unless an element asks it not to. In a group of
radio buttons ↓ would else go to the next cell, and D D delete it. And where ipywidgets gives a control no name that a
screen reader could say, it gets the one that stands beside it.
"""

import anywidget
import traitlets

_ESM = """
// What says what a control is: its own label, or what the page says when the mouse is over it.
function nameOf(control) {
  const widget = control.closest(".widget-inline-hbox, .jupyter-widgets");
  return widget?.querySelector("label")?.textContent.trim() || control.getAttribute("title") || "";
}

function nameControls(group) {
  for (const handle of group.querySelectorAll(".noUi-handle, .widget-readout, input, select, textarea")) {
    if (handle.getAttribute("aria-label") || handle.labels?.length || handle.type === "radio") continue;
    const name = nameOf(handle);
    if (!name) continue;
    const isReadout = handle.classList.contains("widget-readout");
    if (isReadout) handle.setAttribute("role", "textbox");
    handle.setAttribute("aria-label", isReadout ? `${name}, as a number` : name);
  }
}

function render({ model, el }) {
  el.style.display = "none";
  let watched = null;
  // This stands inside the group, but not yet when it is drawn.
  const settled = setInterval(() => {
    const group = el.parentElement;
    if (!group?.isConnected) return;
    clearInterval(settled);
    group.setAttribute("data-lm-suppress-shortcuts", "true");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", model.get("label"));
    watched = new MutationObserver(() => nameControls(group));
    watched.observe(group, { childList: true, subtree: true });
    nameControls(group);
  }, 20);
  return () => {
    clearInterval(settled);
    watched?.disconnect();
  };
}

export default { render };
"""


class Keyboard(anywidget.AnyWidget):
    """Stands unseen in a column of controls, keeps the keys typed there from JupyterLab, and names what has no name.

    Attributes
    ----------
    label : str
        What a screen reader calls the group.
    """

    label = traitlets.Unicode("").tag(sync=True)
    _esm = _ESM
