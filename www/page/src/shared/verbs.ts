// What a visitor can ask by hand, and what its buttons are called.

export const VERBS = [
  ["consume", "Consume"],
  ["reserve", "Reserve"],
  ["settle", "Settle"],
  ["cancel", "Cancel"],
  ["refund", "Refund"],
] as const;

export type Verb = (typeof VERBS)[number][0];
