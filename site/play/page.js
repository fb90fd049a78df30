// A page of Play: what stands in the editor is run in a worker, and what Python says of it is shown.
import { editor } from "./editor.js";

const LONGEST_MS = 90_000; // Python ends a loop of the learner's file by itself after 20 s; this ends everything else
const by = (id) => document.getElementById(id);
const { page, file, total, function: called } = document.body.dataset;
const form = by("play");
const code = form.elements.code;
const startsWith = JSON.parse(by("starts").textContent);
const key = `play ${page}`;
let worker, busy, timer;

code.value = localStorage.getItem(key) ?? startsWith[form.elements.start.value];
const write = editor(code, `Python, ${file}`, (text) => {
  code.value = text;
  localStorage.setItem(key, text);
});

function say(text) {
  by("state").textContent = text;
}

function wait(is) {
  busy = is;
  by("run").disabled = is;
  by("stop").disabled = !is;
  by("result").setAttribute("aria-busy", is);
  clearTimeout(timer);
}

function run() {
  if (busy) return;
  wait(true);
  say(worker ? "It runs." : "Python is loading.");
  worker ??= started();
  const controls = Object.fromEntries(new FormData(form));
  for (const name in controls) if (form.elements[name].type === "range") controls[name] = Number(controls[name]);
  worker.postMessage({ ...controls, page, file, function: called, source: code.value });
}

function started() {
  const made = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  made.onmessage = ({ data }) => {
    if (data.loaded) say(`Python is loading: ${Math.min(100, Math.round((100 * data.loaded) / total))} %.`);
    if (data.ready) {
      say("It runs.");
      timer = setTimeout(() => stop("It had not ended after 90 seconds, and was stopped."), LONGEST_MS);
    }
    if (data.failed) stop(`Python failed (${data.failed}). Are you on line? Run it again.`);
    if (data.answer) show(data.answer);
  };
  made.onerror = (event) => stop(`Python ended (${event.message}). Run it again.`);
  return made;
}

function stop(why = "Stopped. Run starts Python anew.") {
  worker?.terminate();
  worker = undefined;
  wait(false);
  say(why);
}

function show(answer) {
  wait(false);
  say("");
  by("verdict").dataset.status = answer.status;
  by("verdict").innerHTML = answer.verdict; // made and escaped by the course's own code
  by("words").innerHTML = answer.words;
  by("picture").innerHTML = answer.picture;
  by("printed").textContent = answer.printed;
  by("printed").hidden = !answer.printed;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
by("stop").addEventListener("click", () => stop());
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  }
});
form.elements.start.addEventListener("change", (event) => write(startsWith[event.target.value]));
form.addEventListener("input", ({ target }) => {
  if (target.type === "range") target.nextElementSibling.value = target.value;
});
by("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(code.value);
  say("Copied.");
});
by("download").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([code.value], { type: "text/x-python" }));
  link.download = file;
  link.click();
  URL.revokeObjectURL(link.href);
});
wait(false);
navigator.serviceWorker?.register(new URL("offline.js", import.meta.url));
