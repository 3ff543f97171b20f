/* The API of this server, the data that came with the page, and the live events. */
export const ROOT = "/-/api";

export class ApiError extends Error {
  constructor(status, type, message) {
    super(message);
    this.status = status;
    this.type = type;
  }
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(`${ROOT}${path}`, { credentials: "same-origin", redirect: "error", ...options });
  } catch {
    throw new ApiError(0, "unreachable", "the proxy does not answer; is it still running?");
  }
  const text = await response.text();
  let document = null;
  try { document = JSON.parse(text); } catch { /* an original is plain text */ }
  if (!response.ok) {
    const error = document?.error ?? {};
    throw new ApiError(response.status, error.type ?? "error", error.message ?? `${response.status} ${response.statusText}`);
  }
  return { document, text, headers: response.headers };
}

const query = (parameters) => {
  const given = Object.entries(parameters ?? {}).filter(([, value]) => value != null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export const get = async (path, parameters) => (await send(path + query(parameters))).document;
export const getText = (path, parameters) => send(path + query(parameters));
export const post = async (path, body, parameters) => (await send(path + query(parameters), {
  method: "POST", headers: { "content-type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body),
})).document;
export const remove = async (path, parameters) => (await send(path + query(parameters), { method: "DELETE" })).document;

/* The document of the page, which was sent with it. */
export const first = () => JSON.parse(document.getElementById("first-data").textContent);

/* Calls `handle` with each event, and `note` with the state of the stream. The browser resumes by itself after a cut or a
   restart of the server, with the id of the last event; only where the server refused is the stream opened anew here.
   RESET says that events were lost, so that the page has to load again what it shows. Returns what ends it. */
export const EVENTS = ["SESSION_CREATED", "CALL_STARTED", "CALL_COMPLETED", "CALL_UNREADABLE", "MESSAGE_CREATED", "EPOCH_OPENED", "EPOCH_REVERTED", "CACHE_MISSED", "SUMMARY_ADDED",
  "RUNG_FAILED", "CEILING_EXCEEDED", "PRUNE_COMPLETED", "COMPACTION_TRIGGERED", "COMPACTION_COMPLETED", "COMPACTION_FAILED", "DOOM_LOOP_DETECTED", "AGENT_NUDGED", "SESSION_IDLE", "RESET"];
const REOPENED_MS = 2000;
export function follow(parameters, handle, note = () => {}) {
  let source = null, timer = 0;
  const open = (isFirst) => {
    source = new EventSource(`${ROOT}/events${query(parameters)}`);
    for (const type of EVENTS) source.addEventListener(type, (event) => handle(type, JSON.parse(event.data)));
    source.addEventListener("open", () => { note("following"); if (!isFirst) handle("RESET", {}); });
    source.addEventListener("STREAM_ENDED", () => note("connecting again"));
    source.addEventListener("error", () => {
      note("the proxy does not answer; connecting again");
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, REOPENED_MS, false);
    });
  };
  open(true);
  return () => { clearTimeout(timer); source.close(); };
}
