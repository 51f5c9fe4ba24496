// The shared vectors through the larger module of `tollgate/kinds`, those of windows from first use as well.
import "../../build/package/kinds.js";
import "./vectors.test.mjs";
