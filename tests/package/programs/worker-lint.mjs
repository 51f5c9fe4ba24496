import { lint } from "tollgate/lint";
import { rate } from "tollgate/rate";
import { exerciseLint } from "./exercise-lint.mjs";

export default {
  async fetch() {
    return Response.json(await exerciseLint({ lint, rate }));
  },
};
