import { Limiter } from "tollgate";
import { calendarWindow, firstUseWindow, WarmUp } from "tollgate/kinds";

/** A limiter's clock that stands still. */
const clock = { now: () => Date.UTC(2027, 0, 20) };

export default {
  fetch() {
    const window = { rate: 1, calendar: "month", starts: 15, zone: "America/Sao_Paulo" };
    const limits = [calendarWindow(window), firstUseWindow({ rate: 1, periodMs: 60_000 })];
    const pace = new WarmUp(0, { rate: 2, periodMs: 1000, warmUpMs: 4000 });
    return Response.json([
      ...limits.map((limit) => {
        const limiter = new Limiter(limit, { clock });
        return [limiter.tryConsume(), limiter.decide().retryAt];
      }),
      [pace.borrow(0).allowed, pace.borrow(0).readyAt],
    ]);
  },
};
