/* Actions that more than one page has. Each says its price before anything is done. */
import { post } from "./api.js";
import { int, money, short } from "./format.js";
import { ask, say } from "./parts.js";

/* What tokens of uncached input cost in this session, from what it has spent. Without a price: the tokens. */
export const priceOf = (session) => (tokens) => {
  const { tokens: spent, money: paid } = session?.spent ?? {};
  return paid && spent ? money((tokens / spent) * paid) : `${short(tokens)} tokens of uncached input`;
};

export async function revertEpoch(session, n, done) {
  const path = `/sessions/${session.id}/epochs/${n}/revert`, cost = priceOf(session);
  try {
    const { tokens_now: now, tokens_then: then, price, is_lasting: lasts } = await post(path, undefined, { dry_run: true });
    ask(`Revert epoch ${n}?`, `The ${int(now)} tokens that are sent now become ${int(then)}. The next call costs about ${cost(price.once)} more, each one after it ${cost(price.each)} more. ${lasts ? "It stays so until a request reaches the high mark." : "The next call opens another epoch: its request has reached the high mark."}`, "Revert", async () => {
      await post(path);
      setTimeout(done, 300);
      return `Epoch ${n} is reverted with the next call.`;
    });
  } catch (error) { say(error.message); }
}

export async function pinMessage(session, exchange, place) {
  const path = `/sessions/${session.id}/pins`, cost = priceOf(session);
  try {
    const { tokens, price } = await post(path, undefined, { exchange, place, dry_run: true });
    ask(`Bring back message ${place + 1}?`, `It is kept word for word in every epoch from the next on: ${int(tokens)} tokens. They cost about ${cost(price.once)} with the call that opens that epoch, and about ${cost(price.each)} with each call after it, less what stands in their place now.`, "Bring back", async () => {
      await post(path, undefined, { exchange, place });
      return "Pinned: kept word for word in every epoch. The page of the session shows it.";
    });
  } catch (error) { say(error.message); }
}
