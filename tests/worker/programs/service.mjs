// A service of one's own: the two lines of the documentation.
export { default, KeyObject, Tollgate } from "tollgate/worker";
