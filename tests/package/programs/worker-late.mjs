// With nothing done before the first request, and saying what went wrong then.
import { Bucket } from "tollgate";

export default {
  fetch() {
    try {
      return Response.json(new Bucket(0, { rate: 3, periodMs: 1000 }).remaining(0));
    } catch (error) {
      return Response.json(String(error));
    }
  },
};
