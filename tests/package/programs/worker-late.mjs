// Makes its first bucket during a request, and answers with the cause of the error if that fails.
import { Bucket } from "tollgate";

export default {
  fetch() {
    try {
      return Response.json(new Bucket(0, { rate: 3, periodMs: 1000 }).remaining(0));
    } catch (error) {
      return Response.json(String(error.cause));
    }
  },
};
