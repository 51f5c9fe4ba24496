// An app on Hono, with limits in front of its routes.
import { Hono } from "hono";
import { cors } from "hono/cors";
import { rateLimit } from "tollgate/hono";
import { rateLimited, tollgate } from "tollgate/worker";

export { KeyObject } from "tollgate/worker";

const app = new Hono();
app.use("/one/*", rateLimit({ policy: "one" }));
app.get("/one/route", (c) => c.text("passed", 200, { "X-Own": "kept" }));
app.get("/one/broken", () => {
  throw new Error("the app's own");
});

// An app called by pages of another origin, with cookies: it decides itself who may read its responses.
app.use("/cors", cors({ origin: "https://app.example", credentials: true, exposeHeaders: ["Retry-After"] }));
app.use("/cors", rateLimit({ policy: "one", key: () => "cors" }));
app.get("/cors", (c) => c.text("passed"));
app.use("/preflight", rateLimit({ policy: "one", key: () => "preflight" }));
app.all("/preflight", (c) => c.text(c.req.method));

app.post(
  "/login",
  rateLimit({
    policy: "one",
    key: async (c) => (await c.req.json()).user,
    onRefused: (refusal, c) => c.text(`later, ${refusal.retry_after_ms > 0}`, 429, { "X-Own": "kept" }),
  }),
  async (c) => c.json(await c.req.json()),
);

// A plan without this route.
const refuse = (refusal, c) => c.text(`not in this plan, ${refusal.retry_after_ms}`, 429);
app.get("/none", rateLimit({ policy: "none", key: () => "a", onRefused: refuse }), (c) => c.text("passed"));

// Two limits for one route, and a cost by the request.
app.use(
  "/both",
  rateLimit({ policy: "many", key: () => ["tenant", "both"], cost: (c) => Number(c.req.query("cost")) }),
);
app.get("/both", rateLimit({ policy: "one", key: () => "both" }), (c) => c.text("passed"));

app.get("/skipped", rateLimit({ policy: "one", skip: (c) => c.req.header("x-internal") === "yes" }), (c) =>
  c.text("passed"),
);
const throwing = { policy: "one", key: () => "throwing", tollgate: (env) => tollgate(env, { throws: true }) };
app.get("/throwing", rateLimit(throwing), (c) => c.text("passed"));
// A request as a test may make it, which has not come through Cloudflare.
const inTest = rateLimited({ policy: "one" }, () => new Response("passed"));
app.get("/addressless", (c) => inTest(new Request(c.req.url), c.env));
app.get("/limiter", () => rateLimit({ limiter: {} }));
app.get("/keyed", rateLimit({ policy: "all" }), (c) => c.text("passed"));
app.get("/all", rateLimit({ policy: "all", key: () => [] }), (c) => c.text("passed"));
app.get("/unknown", rateLimit({ policy: "typo" }), (c) => c.text("passed"));

// Nothing can be decided, as the objects are not where they should be; unless the key is wrong.
const lost = { getByName: () => ({ decide: () => Promise.reject(new Error("the object is lost")) }) };
const undecided = { policy: "one", key: (c) => c.req.query("key"), tollgate: (env) => tollgate(env, { keys: lost }) };
app.get("/undecided", rateLimit(undecided), (c) => c.text("passed"));
app.get("/open", rateLimit({ ...undecided, onError: () => undefined }), (c) => c.text("passed"));
app.get("/closed", rateLimit({ ...undecided, onError: ({ cause }, c) => c.text(cause, 500) }), (c) => c.text("passed"));
app.onError((error, c) => c.text(`${error.code ?? ""}${error.message}`, 500));

export default app;
