"""A hidden widget that keeps typed keys from JupyterLab's shortcuts, and names controls that have no name.

JupyterLab takes keys for its own shortcuts wherever the focus is, unless an element asks it not to. In a group of radio
buttons ↓ would else go to the next cell, and D D delete it. ipywidgets does not tell the browser which radio buttons
belong together, so this widget does, and arrow keys lead from one to the other. A control without a name for screen
readers gets the label beside it. Where the kernel has gone, the group says so.
"""

import anywidget
import traitlets

PANEL = "inflight-panel"  # the class of a group

_ESM = """
// A control's own label; else its tooltip, which ipywidgets puts now on the control, now on its empty label.
function nameOf(control) {
  const widget = control.closest(".widget-inline-hbox") ?? control;
  const label = widget.querySelector("label");
  return label?.textContent.trim() || control.title || label?.title || widget.title;
}

// What can have the focus must ask for its keys itself: "the element that has the focus" is what Lab's shortcuts name.
const FOCUSABLE = "button, input, select, textarea, summary, [tabindex], [contenteditable]";

function nameControls(group) {
  for (const each of group.querySelectorAll(FOCUSABLE)) each.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const [number, box] of group.querySelectorAll(".widget-radio-box").entries()) {
    for (const radio of box.querySelectorAll("input")) radio.name = `${group.dataset.name}-${number}`;
  }
  for (const control of group.querySelectorAll(".noUi-handle, .widget-readout, input, select, textarea")) {
    const isNamed = [...(control.labels ?? [])].some((label) => label.textContent.trim());
    const name = isNamed || control.hasAttribute("aria-label") ? "" : nameOf(control);
    if (!name) continue;
    const isReadout = control.classList.contains("widget-readout");
    if (isReadout) control.setAttribute("role", "textbox");
    control.setAttribute("aria-label", isReadout ? `${name}, as a number` : name);
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
    group.dataset.name = `controls-${crypto.randomUUID()}`;
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


# JupyterLab marks each widget of a kernel that has gone with a broken chain, and nothing says what to do.
_CSS = f"""
.{PANEL}.jupyter-widgets-disconnected::before {{
  content: "The kernel was restarted. Select this cell, choose Run → Run All Above Selected Cell, then run the cell.";
  font: bold var(--jp-widgets-font-size) system-ui, sans-serif; color: var(--jp-ui-font-color1); opacity: 1;
}}
.{PANEL} .jupyter-widgets-disconnected::before {{ content: none !important; }}
.{PANEL}.jupyter-widgets-disconnected > * {{ opacity: 0.5; pointer-events: none; }}
/* The words beside a radio button have one line in ipywidgets, and on a narrow page would lie on the next ones. */
.{PANEL} .widget-radio-box label {{ display: flex; flex-flow: row-reverse; justify-content: flex-end; height: auto; }}
.{PANEL} .widget-radio-box input {{ flex: none; }}
"""


class Keyboard(anywidget.AnyWidget):
    """A hidden widget in a column of controls: keeps keys typed there from JupyterLab, and names unnamed controls.

    Attributes
    ----------
    label : str
        The group's name for a screen reader.
    """

    label = traitlets.Unicode("").tag(sync=True)
    _esm, _css = _ESM, _CSS
