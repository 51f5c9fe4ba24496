// Answers a request that Rust has parsed: at once, after calls to objects, or by the registry's reply.
import { waitUntil } from "cloudflare:workers";
import { log } from "./log.mjs";
import { endOfOne, endOfSeveral, lostEnd } from "./objects.mjs";
import { administered, inspected, recorded } from "./operators.mjs";
import * as built from "./rust/index.js";
import { verified } from "./session.mjs";

/**
 * The reply, as text, to the request that `ask` makes: see `Frontend.ask` in frontend.rs. For `Frontend.limit`, the arguments of
 * `Step.Limited`. If an object has newer policies, the request is
 * made again with them. `id` is for the log; there is none inside a Worker.
 */
export async function decide(frontend, ask, keys, id) {
  const end = await decided(frontend, ask, keys, id);
  frontend.live.decided();
  if (end[0] === Step.Reply) return end[1];
  const [step, ...asked] = end;
  switch (step) {
    case Step.Administer:
      return administered(frontend, asked, id);
    case Step.Inspect:
      return inspected(frontend, asked, keys, id);
    case Step.Record:
      return evenIfTheClientLeaves(recorded(frontend, asked, id));
    case Step.Verify:
      return verified(frontend, asked, id);
    case Step.Limited:
      return asked;
  }
}

/** The step after the calls to objects, if there are any. */
async function decided(frontend, ask, keys, id) {
  for (let newer; ; ) {
    const step = ask(newer);
    if (step[0] !== Step.Call) return step;
    let end;
    try {
      end = await begun(step, keys, id, frontend);
    } catch (error) {
      // Another request panicked meanwhile, and this call was lost with the old instance's memory.
      log("error", "a call was lost", { request_id: id, error });
      const lost = ask(LOST); // a reply if the request became invalid because its policy has changed
      return lost[0] === Step.Call ? lostEnd(lost[1], frontend) : lost;
    }
    if (end[0] !== Step.Again) return end;
    newer = end[1];
    const needsRegistry = end[2];
    if (needsRegistry) await frontend.changed();
  }
}

function begun([, call, isOfSeveral], keys, id, frontend) {
  const { must_finish } = call;
  const ending = (isOfSeveral ? endOfSeveral : endOfOne)(call, keys, id, frontend);
  return must_finish ? evenIfTheClientLeaves(ending) : ending;
}

function evenIfTheClientLeaves(work) {
  waitUntil(work.catch(() => {}));
  return work;
}

const { Step } = built;

/** In place of newer policies, for a request whose call was lost. */
const LOST = [];
