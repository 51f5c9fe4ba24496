// The frame of every view: the name and the navigation.
import { useEffect, useRef, useState } from "preact/hooks";
import { VIEWS } from "./views.ts";

export function Frame() {
  const [id, setId] = useState(shown);
  const visited = useRef(new Set<string>()).current;
  useEffect(() => {
    const change = () => setId(shown());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  const view = VIEWS.find((view) => view.id === id) ?? VIEWS[0]!;
  visited.add(view.id);
  useEffect(() => {
    document.title = `${view.title} · Tollgate`;
  }, [view]);
  return (
    <>
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to the content
      </button>
      <header class="frame">
        <h1>
          <img src="/icon.svg" alt="" width="28" height="28" />
          Tollgate
        </h1>
        <p>See a limit work before you trust it.</p>
        <nav aria-label="Views">
          {VIEWS.map(({ id, title }) => (
            <a key={id} href={`#${id}`} aria-current={id === view.id ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
      </header>
      <main id="main" tabIndex={-1}>
        {VIEWS.filter(({ id }) => visited.has(id)).map(({ id, component: Component }) => (
          <div key={id} hidden={id !== view.id}>
            <Component isShown={id === view.id} />
          </div>
        ))}
      </main>
    </>
  );
}

/**
 * The view that the hash names: its id comes before a question mark, the view's own part after it. A hash that names none is
 * passed to the first view, which reports that it cannot be read.
 */
function shown(): string {
  const hash = location.hash.slice(1);
  const [id] = hash.split("?");
  if (!id || VIEWS.some((view) => view.id === id)) return id!;
  location.replace(`#${VIEWS[0]!.id}?${hash}`);
  return VIEWS[0]!.id;
}
