/* Starts the view that the page names. */
import { $, put } from "./lib/dom.js";
import { start } from "./lib/keys.js";
import { errorState } from "./lib/parts.js";

const VIEWS = {
  sessions: () => import("./views/sessions.js"), session: () => import("./views/session.js"), call: () => import("./views/call.js"), epoch: () => import("./views/epoch.js"),
  summaries: () => import("./views/summaries.js"), search: () => import("./views/search.js"), health: () => import("./views/health.js"),
};

start();
try {
  const view = await VIEWS[document.body.dataset.view]();
  await view.show();
} catch (error) {
  put($("#main"), errorState(error, () => location.reload()));
  console.error(error);
}
