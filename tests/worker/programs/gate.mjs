// A gate in front of an origin: each route has a policy and a key, and nothing else is changed.
import { rateLimited } from "tollgate/worker";

export { KeyObject } from "tollgate/worker";

/** The first whose path matches counts. Requests to other paths pass. */
const ROUTES = [
  { path: "/login", policy: "login" }, // by the client's address
  { path: "/api/*", policy: "api", key: ({ headers }) => headers.get("x-api-key") ?? undefined },
].map(({ path, ...route }) => ({ pattern: new URLPattern({ pathname: path }), ...route }));

const routeOf = (request) => ROUTES.find(({ pattern }) => pattern.test(request.url));

export default {
  fetch: rateLimited(
    {
      skip: (request) => !routeOf(request),
      policy: (request) => routeOf(request).policy,
      key: (request) => routeOf(request).key?.(request),
    },
    (request, env) => {
      const { pathname, search } = new URL(request.url);
      return fetch(new Request(new URL(pathname + search, env.ORIGIN), request));
    },
  ),
};
