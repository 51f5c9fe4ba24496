// Limiters with many waiting calls: Tollgate's beside p-queue. All join while nothing is admitted; then all are admitted.
import PQueue from "p-queue";
import { Limiter } from "tollgate";
import { LONG_MS } from "../joins.mjs";

export const limiterQueue = {
  name: "Tollgate's Limiter",
  async run(calls, [optionsOf]) {
    const limiter = new Limiter({ rate: 1, periodMs: 1, capacity: calls }, { maxQueue: calls });
    limiter.pause(limiter.clock.now() + LONG_MS);
    let admitted = 0;
    const all = [];
    for (let i = 0; i < calls; i++) all.push(limiter.acquire(optionsOf()).then(() => admitted++));
    limiter.resume();
    await Promise.all(all);
    return admitted;
  },
};

export const pQueue = {
  name: "p-queue",
  async run(calls, [, optionsOf]) {
    const queue = new PQueue({ autoStart: false });
    let admitted = 0;
    const all = [];
    for (let i = 0; i < calls; i++) all.push(queue.add(() => admitted++, optionsOf()));
    queue.start();
    await Promise.all(all);
    return admitted;
  },
};
