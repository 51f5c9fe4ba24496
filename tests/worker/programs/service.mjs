// A minimal service: the two lines of the documentation.
export { default, KeyObject, Tollgate } from "tollgate/worker";
