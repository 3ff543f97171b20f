/* Starts the view that the page names. */
import { ApiError } from "./lib/api.js";
import { $, h, put } from "./lib/dom.js";
import { start } from "./lib/keys.js";
import { errorState } from "./lib/parts.js";

const VIEWS = {
  sessions: () => import("./views/sessions.js"), session: () => import("./views/session.js"), call: () => import("./views/call.js"),
  conversation: () => import("./views/conversation.js"), epoch: () => import("./views/epoch.js"),
  summaries: () => import("./views/summaries.js"), search: () => import("./views/search.js"), health: () => import("./views/health.js"),
};

/* The page is seen once its view is drawn, so that nothing jumps. What is slow is not waited for: it draws in its place. */
const MOST_HIDDEN_MS = 700;
const reveal = () => requestAnimationFrame(() => { document.documentElement.dataset.drawn = ""; });

start();
setTimeout(reveal, MOST_HIDDEN_MS);
try {
  const data = document.getElementById("first-data").textContent;
  const failed = data.startsWith('{"type":"error"') || data.startsWith('{"error"') ? JSON.parse(data).error : null;
  if (failed) throw new ApiError(Number(document.body.dataset.status), failed.code ?? failed.type, failed.message);
  const view = await VIEWS[document.body.dataset.view]();
  await view.show();
} catch (error) {
  put($("#main"), h("h1", { class: "hide" }, "This page cannot be shown"), errorState(error, () => location.reload()));
  if (!(error instanceof ApiError)) console.error(error);
}
reveal();
