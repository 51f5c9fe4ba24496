// `tollgate`, and that `tollgate/slim` is the same beside it: it needs no `init` then.
import * as tollgate from "tollgate";
import * as slim from "tollgate/slim";
import { exercise } from "./exercise.mjs";

const others = new Map(Object.entries(slim));
const isOne = Object.entries(tollgate).every(([name, value]) => value === others.get(name));
console.log(JSON.stringify({ isOne, exercise: await exercise(slim) }));
