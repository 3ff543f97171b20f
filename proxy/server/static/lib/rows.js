/* A table body of which only the rows in view are in the document, for lists of many thousands of rows of one height. */
import { h, put } from "./dom.js";

const MARGIN = 20;

export function virtualRows(scroller, body, columns, assumed, drawRow) {
  let items = [], height = assumed;
  let from = -1, to = -1;
  const spacer = (rows) => h("tr", { "aria-hidden": "true", class: "spacer" }, h("td", { colspan: columns, vars: { height: `${rows * height}px`, padding: 0 } }));

  function draw(force = false) {
    const top = scroller === window ? Math.max(0, -body.getBoundingClientRect().top) : scroller.scrollTop;
    const seen = scroller === window ? innerHeight : scroller.clientHeight;
    const start = Math.max(0, Math.floor(top / height) - MARGIN);
    const stop = Math.min(items.length, Math.ceil((top + seen) / height) + MARGIN);
    if (!force && start === from && stop === to) return;
    const focused = body.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.key : null;
    from = start;
    to = stop;
    const rows = [];
    for (let i = start; i < stop; i++) rows.push(drawRow(items[i], i));
    put(body, start > 0 && spacer(start), rows, stop < items.length && spacer(items.length - stop));
    const measured = rows.length ? (rows.at(-1).getBoundingClientRect().bottom - rows[0].getBoundingClientRect().top) / rows.length : 0;
    if (measured > 0 && Math.abs(measured - height) > 1) { height = measured; if (rows.length < items.length) draw(true); }
    if (focused) body.querySelector(`tr[data-key="${CSS.escape(focused)}"] [data-walk]`)?.focus({ preventScroll: true });
  }

  scroller.addEventListener("scroll", () => requestAnimationFrame(() => draw()), { passive: true });
  addEventListener("resize", () => draw(true));
  return { show(list) { items = list; draw(true); }, redraw: () => draw(true), get length() { return items.length; } };
}
