// The types of the npm package's client are those of the contract: `wire.ts` is made from its schemas.
import type {
  BatchDegraded,
  BatchGranted,
  BatchRefused,
  BudgetRequest,
  Degraded,
  Granted,
  Inspection,
  Leased,
  LeaseRequest,
  LimitSnapshot,
  Problem,
  Refused,
  ReservationRequest,
  Undecided,
  Verdict,
} from "tollgate/client";
import type * as wire from "./wire.js";

/** The problems by status, except refusals and those of operators' endpoints, which the client does not call. */
type WireProblem = Exclude<
  { [Name in keyof Problems]: Problems[Name] }[keyof Problems],
  { readonly status: 429 | 412 | 428 }
>;
type Problems = wire.Problems;

/** Members that `Client` adds to an answer. */
type Added<Status> = { readonly status: Status; readonly headers: Headers };

// Everything that the service may send fits the client's types.
type Fits<Sent extends Received, Received> = Sent;
export type Answers = [
  Fits<wire.Granted & Added<200>, Granted>,
  Fits<wire.Degraded & Added<200>, Degraded>,
  Fits<wire.Refused & Added<429>, Refused>,
  Fits<wire.Inspection & Added<200>, Inspection>,
  Fits<wire.Leased & Added<200>, Leased>,
  Fits<wire.BatchGranted & Added<200>, BatchGranted>,
  Fits<wire.BatchDegraded & Added<200>, BatchDegraded>,
  Fits<wire.BatchRefused & Added<429>, BatchRefused>,
  Fits<wire.Granted | wire.Denied, Verdict>,
  Fits<wire.Undecided, Undecided>,
  Fits<wire.LimitSnapshot, LimitSnapshot>,
  Fits<WireProblem & { readonly headers: Headers }, Problem>,
];
// Everything that may be sent can be written with them.
export type Requests = [
  Fits<wire.TakeRequest | wire.AdvanceRequest | wire.CostRequest | wire.BudgetRequest, BudgetRequest>,
  Fits<wire.SettleRequest | wire.CancelRequest, ReservationRequest>,
  Fits<wire.LeaseRequest, LeaseRequest>,
  Fits<wire.BatchRequest, { readonly requests: readonly BudgetRequest[] }>,
];

// Neither side has a member or a status that the other lacks.
type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : { onlyInB: Exclude<B, A> }) : { onlyInA: Exclude<A, B> };
/** The names of the members in any of the alternatives. */
type Names<T> = T extends unknown ? { [K in keyof T]-?: [T[K] & {}] extends [never] ? never : K }[keyof T] : never;
type Own<T> = Exclude<Names<T>, "status" | "headers">;
export const members: [
  Same<Own<Granted | Refused>, Own<wire.Granted | wire.Refused>>,
  Same<Own<Degraded>, Own<wire.Degraded>>,
  Same<Own<Inspection>, Own<wire.Inspection>>,
  Same<Names<Inspection["limits"][number]>, Names<wire.LimitStanding>>,
  Same<Names<NonNullable<Verdict["limits"]>[number]>, Names<wire.LimitVerdict>>,
  Same<Names<LimitSnapshot>, Names<wire.LimitSnapshot>>,
  Same<Own<Leased>, Own<wire.Leased>>,
  Same<Names<LeaseRequest>, Names<wire.LeaseRequest>>,
  Same<Own<BatchGranted>, Own<wire.BatchGranted>>,
  Same<Own<BatchDegraded>, Own<wire.BatchDegraded>>,
  Same<Own<BatchRefused>, Own<wire.BatchRefused>>,
  Same<Own<Problem>, Own<WireProblem>>,
  Same<Names<Undecided>, Names<wire.Undecided>>,
  Same<Names<BudgetRequest>, Names<wire.TakeRequest | wire.AdvanceRequest>>,
  Same<Names<ReservationRequest>, Names<wire.SettleRequest> | "mode" | "max_wait_ms">,
  Same<Problem["status"], WireProblem["status"]>,
] = [true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true];
