// Around the built Worker: its objects understand only format 2, arrays of numbers, and answer with arrays. They read a text
// as an array of its characters. A request to /calls is answered with how often they were called, and how often so that they understood.
import front, { KeyObject as Real } from "./entry.js";

const calls = { all: 0, understood: 0 };

export class KeyObject extends Real {
  async decide(policies, request, definitions) {
    calls.all++;
    const numbers = new Float64Array(request.length);
    numbers.set(request);
    if (numbers[0] !== FORMAT) return Float64Array.of(FORMAT, UNKNOWN, FORMAT);
    calls.understood++;
    const reply = await super.decide(policies, numbers, definitions);
    if (!(reply instanceof Float64Array)) throw new TypeError("the object answers otherwise than it was asked");
    return reply;
  }
}

export default {
  fetch(request, env, context) {
    return new URL(request.url).pathname === "/calls" ? Response.json(calls) : front.fetch(request, env, context);
  },
};

const FORMAT = 2;
const UNKNOWN = 5;
