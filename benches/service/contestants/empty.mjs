// A Worker that does nothing: what the runtime itself takes.
import { DurableObject } from "cloudflare:workers";

export class KeyObject extends DurableObject {}

export default {
  fetch: () => new Response("{}"),
};
