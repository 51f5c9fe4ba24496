// `tollgate/keyed` brings the core itself, and shares it with `tollgate`.
import { TollgateError } from "tollgate";
import * as keyed from "tollgate/keyed";
import { exerciseKeyed } from "./exercise-keyed.mjs";

const isOne = keyed.TollgateError === TollgateError;
console.log(JSON.stringify({ isOne, exercise: exerciseKeyed(keyed) }));
