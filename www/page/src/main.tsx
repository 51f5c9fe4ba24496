// The page: one view at a time, chosen by the hash of the address.
import { render } from "preact";
import "./styles.css";
import { Frame } from "./frame.tsx";

render(<Frame />, document.getElementById("page")!);
