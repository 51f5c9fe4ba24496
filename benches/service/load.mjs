// The cheapest possible load, since it shares the processors with what it measures: each connection sends bytes that
// were prepared before, waits for the whole answer, and sends the next.
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

/** Opens new connections each time: the runtime closes one that was idle for 5 seconds. */
export class Client {
  #port;
  #connections;

  constructor(port, connections) {
    this.#port = port;
    this.#connections = connections;
  }

  /** Sends these bytes and returns the whole answer. */
  async ask(bytes) {
    let answer;
    await this.#with(1, ([connection], end) => {
      connection.send(bytes, (text) => {
        answer = text;
        end();
      });
    });
    return answer;
  }

  /** Sends each request once: `{ bytes, status }`, with the status that the answer must have, or `null` if it may be granted or refused. */
  each(requests) {
    return this.#withAll((connections, end) => inTurn(connections, requests.values(), new Seen(), end));
  }

  /**
   * Sends the requests in turn, repeatedly, for this many seconds, each as soon as a connection has its last answer. Returns how long
   * each answer took, in milliseconds, how many were grants, and how many seconds it took in all.
   */
  load(requests, seconds) {
    return this.#seen((connections, seen, end) => {
      const ends = performance.now() + seconds * 1_000;
      inTurn(
        connections,
        endless(requests, () => performance.now() < ends),
        seen,
        end,
      );
    });
  }

  /**
   * The same, with this many requests per second, evenly spaced, whether they are answered or not: one that finds no free connection
   * waits for it, and that counts.
   */
  offer(requests, perSecond, seconds) {
    return this.#seen((connections, seen, end) => {
      const total = Math.round(perSecond * seconds);
      atPace(
        connections,
        endless(requests, () => true),
        { perSecond, total },
        seen,
        end,
      );
    });
  }

  async #seen(run) {
    const seen = new Seen();
    let began;
    await this.#withAll((connections, end) => {
      began = performance.now();
      run(connections, seen, end);
    });
    return { took: seen.took, granted: seen.granted, elapsed: (performance.now() - began) / 1_000 };
  }

  #withAll(run) {
    return this.#with(this.#connections, run);
  }

  /** With its own connections until it ends, with an error or without. */
  async #with(count, run) {
    const connections = await Promise.all(Array.from({ length: count }, () => Connection.to(this.#port)));
    try {
      await new Promise((resolve, reject) => {
        const end = (error) => (error ? reject(error) : resolve());
        for (const connection of connections) connection.onError = reject;
        run(connections, end);
      });
    } finally {
      for (const connection of connections) connection.close();
    }
  }
}

/** Each connection takes the next request as soon as its last was answered. */
function inTurn(connections, requests, seen, end) {
  let left = connections.length;
  const next = (connection) => {
    const { done, value } = requests.next();
    if (done) {
      left -= 1;
      if (left === 0) end();
      return;
    }
    const sentAt = performance.now();
    connection.send(value.bytes, (answer) => {
      seen.add(value, answer, sentAt);
      next(connection);
    });
  };
  connections.forEach(next);
}

/** This many requests per second, `total` in all. */
function atPace(connections, requests, { perSecond, total }, seen, end) {
  const began = performance.now();
  const free = [...connections];
  /** The arrival time of each request that waits for a connection. */
  const waiting = [];
  let [come, answered] = [0, 0];
  const send = () => {
    while (free.length > 0 && waiting.length > 0) {
      const [connection, cameAt, { value }] = [free.pop(), waiting.shift(), requests.next()];
      connection.send(value.bytes, (answer) => {
        seen.add(value, answer, cameAt);
        answered += 1;
        if (answered === total) return end();
        free.push(connection);
        send();
      });
    }
  };
  const tick = () => {
    const now = performance.now();
    const due = Math.min(total, Math.floor(((now - began) / 1_000) * perSecond));
    for (; come < due; come++) waiting.push(now);
    send();
    if (come < total) setTimeout(tick, 1);
  };
  tick();
}

function* endless(requests, goesOn) {
  for (let i = 0; goesOn(); i = (i + 1) % requests.length) yield requests[i];
}

/** The answers. */
class Seen {
  took = [];
  granted = 0;

  add({ status }, answer, askedAt) {
    const isGranted = answer.startsWith(GRANTED);
    const isExpected = status === null ? isGranted || answer.startsWith(REFUSED) : answer.startsWith(START + status);
    if (!isExpected) throw new Error(`expected ${status ?? "200 or 429"}, but the answer was:\n${answer}`);
    this.took.push(performance.now() - askedAt);
    if (isGranted) this.granted += 1;
  }
}

const START = "HTTP/1.1 ";
const [GRANTED, REFUSED] = [`${START}200 `, `${START}429 `];

class Connection {
  #socket;
  /** The part of an incomplete answer that has arrived. */
  #part = "";
  #onAnswer;

  /** Called when the connection breaks, or an answer is not the expected one. */
  onError = () => {};

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
    socket.on("error", (error) => connection.onError(error));
    socket.on("close", () => connection.onError(new Error("the connection was closed before an answer")));
    return connection;
  }

  /** Sends bytes once the previous ones were answered, and passes on the whole answer. */
  send(bytes, onAnswer) {
    this.#onAnswer = onAnswer;
    this.#socket.write(bytes);
  }

  close() {
    this.#socket.destroy();
  }

  #received(text) {
    const answer = this.#part + text;
    if (!isWhole(answer)) {
      this.#part = answer;
      return;
    }
    this.#part = "";
    try {
      this.#onAnswer(answer);
    } catch (error) {
      this.onError(error);
    }
  }
}

function isWhole(answer) {
  const end = answer.indexOf("\r\n\r\n");
  if (end === -1) return false;
  const length = LENGTH.exec(answer);
  // Answers without a length come in chunks, the last of them empty.
  return length ? answer.length >= end + 4 + Number(length[1]) : answer.endsWith("\r\n0\r\n\r\n");
}

const LENGTH = /\r\ncontent-length: (\d+)/i;
const MAX_ANSWER_LEN = 16 * 1024;
