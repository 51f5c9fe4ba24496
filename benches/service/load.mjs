// Load as cheap as it can be made, since it shares the processors with what it measures: each connection sends bytes that
// were made before, waits for the whole answer, and sends the next.
import { once } from "node:events";
import { connect } from "node:net";

/** The bytes of a POST of JSON. */
export function post(path, token, body) {
  const json = JSON.stringify(body);
  const head = [
    `POST ${path} HTTP/1.1`,
    "Host: localhost",
    `Authorization: Bearer ${token}`,
    "Content-Type: application/json",
    `Content-Length: ${Buffer.byteLength(json)}`,
  ];
  return Buffer.from(`${head.join("\r\n")}\r\n\r\n${json}`);
}

/** The bytes of a GET. */
export function get(path) {
  return Buffer.from(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
}

/** Opens its connections anew each time: the runtime closes one that was idle for 5 seconds. */
export class Client {
  #port;
  #connections;

  constructor(port, connections) {
    this.#port = port;
    this.#connections = connections;
  }

  /** Sends one request and returns the whole answer. */
  async ask(request) {
    const [connection] = await this.#open(1);
    let answer;
    await all([connection], [request].values(), (text) => (answer = text));
    return answer;
  }

  /** Sends each request once; `status` is what every answer must have. */
  async each(requests, status) {
    await all(await this.#open(this.#connections), requests.values(), expect(status));
  }

  /**
   * Sends the requests in turn, over and over, for so many seconds; `status` is what every answer must have. Returns how
   * long each answer took, in milliseconds, and how many there were in a second.
   */
  async load(requests, status, seconds) {
    const connections = await this.#open(this.#connections);
    const check = expect(status);
    const took = [];
    const began = performance.now();
    const ends = began + seconds * 1_000;
    const inTurn = endless(requests, () => performance.now() < ends);
    await all(connections, inTurn, (answer, ms) => {
      check(answer);
      took.push(ms);
    });
    return { took, perSecond: (took.length / (performance.now() - began)) * 1_000 };
  }

  #open(count) {
    return Promise.all(Array.from({ length: count }, () => Connection.to(this.#port)));
  }
}

/** Each connection takes the next request as soon as its last was answered. */
async function all(connections, requests, onAnswer) {
  try {
    await Promise.all(connections.map((connection) => connection.run(requests, onAnswer)));
  } finally {
    for (const connection of connections) connection.close();
  }
}

function expect(status) {
  const start = `HTTP/1.1 ${status} `;
  return (answer) => {
    if (!answer.startsWith(start)) throw new Error(`expected ${status}, but the answer was:\n${answer}`);
  };
}

function* endless(requests, goesOn) {
  for (let i = 0; goesOn(); i = (i + 1) % requests.length) yield requests[i];
}

class Connection {
  #socket;
  /** What has arrived of an answer that is not whole yet. */
  #part = "";
  #sentAt;
  #requests;
  #onAnswer;
  #done = Promise.withResolvers();

  static async to(port) {
    const connection = new Connection();
    const callback = (length, buffer) => connection.#received(buffer.latin1Slice(0, length));
    const socket = connect({
      port,
      host: "127.0.0.1",
      noDelay: true,
      onread: { buffer: Buffer.alloc(MAX_ANSWER_LEN), callback },
    });
    connection.#socket = socket;
    await once(socket, "connect");
    socket.on("error", connection.#done.reject);
    socket.on("close", () => connection.#done.reject(new Error("the connection was closed before an answer")));
    return connection;
  }

  /** Once: sends what the iterator gives, one after another, and passes on each whole answer and the milliseconds it took. */
  async run(requests, onAnswer) {
    this.#requests = requests;
    this.#onAnswer = onAnswer;
    this.#next();
    await this.#done.promise;
  }

  close() {
    this.#socket.destroy();
  }

  #next() {
    const { done, value } = this.#requests.next();
    if (done) return this.#done.resolve();
    this.#sentAt = performance.now();
    this.#socket.write(value);
  }

  #received(text) {
    const answer = this.#part + text;
    if (!isWhole(answer)) {
      this.#part = answer;
      return;
    }
    this.#part = "";
    try {
      this.#onAnswer(answer, performance.now() - this.#sentAt);
      this.#next();
    } catch (error) {
      this.#done.reject(error);
    }
  }
}

function isWhole(answer) {
  const end = answer.indexOf("\r\n\r\n");
  if (end === -1) return false;
  const length = LENGTH.exec(answer);
  // The answers of a Worker that gives no length come in chunks, the last of them empty.
  return length ? answer.length >= end + 4 + Number(length[1]) : answer.endsWith("\r\n0\r\n\r\n");
}

const LENGTH = /\r\ncontent-length: (\d+)/i;
const MAX_ANSWER_LEN = 16 * 1024;
