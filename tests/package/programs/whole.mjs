// `tollgate` and `tollgate/slim` together, which have the same exports, so that slim needs no `init`.
import * as tollgate from "tollgate";
import * as slim from "tollgate/slim";
import { exercise } from "./exercise.mjs";

const others = new Map(Object.entries(slim));
const isOne = Object.entries(tollgate).every(([name, value]) => value === others.get(name));
console.log(JSON.stringify({ isOne, exercise: await exercise(slim) }));
