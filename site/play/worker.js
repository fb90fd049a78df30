// Python in WebAssembly, with the course's own modules: loaded at the first message, then asked what each message asks.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const FILES = ["pyodide/pyodide.asm.mjs", "pyodide/pyodide.asm.wasm", "pyodide/python_stdlib.zip", "play.zip"];

// Fetch all that Python needs, and say how many bytes have come. Pyodide then finds it in the browser's cache.
async function fetched(name, tell) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  const parts = [];
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).arrayBuffer();
    parts.push(value);
    tell(value.length);
  }
}

async function load() {
  let loaded = 0;
  const tell = (bytes) => postMessage({ loaded: (loaded += bytes) });
  const files = await Promise.all(FILES.map((name) => fetched(name, tell)));
  const python = await loadPyodide();
  python.unpackArchive(files[3], "zip", { extractDir: "/course" });
  python.runPython("import sys; sys.path.insert(0, '/course')");
  return python.runPython("import json, play; lambda asked: json.dumps(play.answer(json.loads(asked)))");
}

const loading = load();
loading.catch((error) => postMessage({ failed: String(error) }));
onmessage = async ({ data }) => {
  const answer = await loading;
  postMessage({ ready: true });
  try {
    postMessage({ answer: JSON.parse(answer(JSON.stringify(data))) });
  } catch (error) {
    postMessage({ failed: String(error) });
  }
};
