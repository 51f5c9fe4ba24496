// A Worker written for the platform's rate limiting binding, and for hono-rate-limiter.
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";

const app = new Hono();
app.get("/plain/:key", async (c) => {
  const { success } = await c.env.LIMITER.limit({ key: c.req.param("key") });
  return success ? c.text("passed") : c.text("refused", 429);
});
const byKey = (c) => c.req.param("key");
app.get("/hono/:key", rateLimiter({ binding: (c) => c.env.LIMITER, keyGenerator: byKey }), (c) => c.text("passed"));
app.onError((error, c) => c.text(error.message, 500));

export default app;
