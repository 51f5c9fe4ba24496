// A contestant in its processes, with its measurements, round by round.
import { TOKEN } from "./contestants.mjs";
import { Client, get, post } from "./load.mjs";
import { cpuMicros } from "./measure.mjs";
import { mostGranted, requestsOf } from "./scenarios.mjs";

export class Lane {
  #host;
  #client;
  #scenario;
  #requests;

  /** Requests answered per second. */
  perSecond = [];
  /** The median and the 99th percentile of a round's response times, in milliseconds. */
  p50 = [];
  p99 = [];
  /** Microseconds of processor time per request; none if the system does not report it. */
  cpu = [];
  /** Over all rounds. */
  answers = 0;
  granted = 0;
  /** Rows written; none if they are not counted. */
  rows = NaN;

  static async start({ name, isCompared = false, start, credentialOf = () => TOKEN }, scenario, connections) {
    const lane = new Lane();
    Object.assign(lane, { name, isCompared, credentialOf });
    lane.#scenario = scenario;
    lane.#requests = requestsOf(scenario, (policy, key) => lane.consume(policy, key));
    lane.#host = await start();
    lane.#client = new Client(lane.#host.port, connections);
    return lane;
  }

  async warmUp(seconds) {
    const first = this.#requests.map((request) => ({ ...request, status: 200 }));
    await this.#client.each(first).catch(this.#explain); // wakes every object, and spends the budgets to be refused
    await this.#load(seconds);
    this.rows = -(await this.#rowsSoFar());
  }

  async run(seconds) {
    const cpuBefore = cpuMicros(this.#host.pids);
    const { took, granted, elapsed } = await this.#load(seconds);
    const cpuAfter = cpuMicros(this.#host.pids);
    const most = mostGranted(this.#scenario, elapsed);
    if (granted > most) throw new Error(`${this.name} has granted ${granted} requests, and ${most} are allowed`);
    took.sort((a, b) => a - b);
    this.perSecond.push(took.length / elapsed);
    this.p50.push(took[Math.floor(took.length * 0.5)]);
    this.p99.push(took[Math.floor(took.length * 0.99)]);
    this.cpu.push((cpuAfter - cpuBefore) / took.length);
    this.answers += took.length;
    this.granted += granted;
  }

  consume(policy, key) {
    return post("/v1/consume", this.credentialOf(key), { policy, key, cost: 1 });
  }

  ask(bytes) {
    return this.#client.ask(bytes).catch(this.#explain);
  }

  async end() {
    this.rows += await this.#rowsSoFar();
    await this.#host.remove();
  }

  async #rowsSoFar() {
    return this.#host.countsRows ? Number((await this.ask(get("/rows"))).split("\r\n\r\n")[1]) : NaN;
  }

  #load(seconds) {
    const { offered } = this.#scenario;
    const load = offered
      ? this.#client.offer(this.#requests, offered, seconds)
      : this.#client.load(this.#requests, seconds);
    return load.catch(this.#explain);
  }

  #explain = async (error) => {
    await this.#host.kill(); // now its log is whole
    throw new Error(`${this.name}: ${error.message}\nIts log:\n${this.#host.log()}`);
  };
}
