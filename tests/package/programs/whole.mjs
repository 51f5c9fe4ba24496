// `tollgate`, and that `tollgate/slim` is the same beside it: it needs no `init` then.
import * as tollgate from "tollgate";
import * as slim from "tollgate/slim";
import { exercise } from "./exercise.mjs";

const isOne = Object.keys(tollgate).every((name) => tollgate[name] === slim[name]);
console.log(JSON.stringify({ isOne, exercise: await exercise(slim) }));
