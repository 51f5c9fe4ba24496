// The views of the page, in the order of the navigation. The first is shown where the hash names none.
import type { ComponentType } from "preact";
import { Live } from "./live/live.tsx";
import { Operators } from "./operators/operators.tsx";
import { Playground } from "./playground/playground.tsx";

export interface View {
  /** What the hash begins with: `#playground`. */
  readonly id: string;
  readonly title: string;
  readonly component: ComponentType<ViewProps>;
}

/** A view that was shown once stays, so that nothing in it is lost; while hidden, it sends nothing. */
export interface ViewProps {
  readonly isShown: boolean;
}

export const VIEWS: readonly View[] = [
  { id: "playground", title: "Playground", component: Playground },
  { id: "live", title: "Live", component: Live },
  { id: "operators", title: "Operators", component: Operators },
];
