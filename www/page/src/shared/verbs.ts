// The verbs of requests by hand, and the labels of their buttons.

export const VERBS = [
  ["consume", "Consume"],
  ["reserve", "Reserve"],
  ["settle", "Settle"],
  ["cancel", "Cancel"],
  ["refund", "Refund"],
] as const;

export type Verb = (typeof VERBS)[number][0];
