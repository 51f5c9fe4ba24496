// The charts, read back from their pixels.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open } from "./page.mjs";

/** Opens the playground with one or two policies and a trace of lines of `seconds,cost,verb`, played to its end. */
async function play(lines, toml, other) {
  const opened = await open();
  const { page } = opened;
  const press = (name) => page.getByRole("button", { name, exact: true }).last().click();
  await press("TOML");
  await page.getByLabel("Policy as TOML").fill(`[p]\n${toml}`);
  if (other !== undefined) {
    await page.getByRole("button", { name: /^Compare with a/ }).click();
    await press("TOML");
    await page.getByLabel("Compared with as TOML").fill(`[q]\n${other}`);
    await page.getByRole("heading", { level: 2, name: /^q: / }).waitFor();
  }
  await page.getByRole("heading", { level: 2, name: /^p: / }).waitFor();
  await page.getByLabel("Trace").selectOption("csv");
  await page.getByLabel("Lines of seconds").fill(lines.join("\n"));
  await page.getByLabel("Moment").press("End");
  for (let frame = 0; frame < 2; frame++) {
    // Charts are drawn after the frame in which the rest of the page changes.
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))));
  }
  return { ...opened, chart: (name) => page.getByRole("img", { name }) };
}

/**
 * Where a chart has a colour: for each column of pixels between the axes, the runs of rows that have it, as [top, bottom]. Pixels at the
 * edge of a line count if the line covers most of them.
 */
function drawn(chart, colour) {
  return chart.evaluate(
    (canvas, { colour, left, right }) => {
      const style = getComputedStyle(canvas);
      const normal = document.createElement("canvas").getContext("2d");
      const rgb = (name) => {
        normal.fillStyle = style.getPropertyValue(`--${name}`);
        return [1, 3, 5].map((at) => Number.parseInt(normal.fillStyle.slice(at, at + 2), 16));
      };
      const [wanted, ground] = [rgb(colour), rgb("surface")];
      const { width, height } = canvas;
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      const isDrawn = (x, y) => {
        const at = 4 * (y * width + x);
        const alpha = data[at + 3] / 255;
        const seen = ground.map((value, i) => value + (data[at + i] - value) * alpha);
        return Math.hypot(...wanted.map((value, i) => value - seen[i])) < 60;
      };
      return Array.from({ length: width - left - right }, (_, column) => {
        const runs = [];
        for (let y = 0; y < height; y++) {
          if (!isDrawn(left + column, y)) continue;
          if (runs.at(-1)?.[1] === y - 1) runs.at(-1)[1] = y;
          else runs.push([y, y]);
        }
        return runs;
      });
    },
    { colour, left: LEFT, right: RIGHT },
  );
}

/** The rows of a chart of levels at which the capacity and nothing are: those of its dashed and of its quiet line. */
async function scale(chart) {
  const rows = async (colour, side) => {
    const all = (await drawn(chart, colour)).flat().map(([top, bottom]) => (top + bottom) / 2);
    return side === "top" ? Math.min(...all) : all.toSorted((a, b) => a - b)[Math.floor(all.length / 2)];
  };
  return { capacity: await rows("bound", "top"), nothing: await rows("quiet") };
}

// A token a second up to 20: 15 are taken at once, 5 more after 5 seconds; at 20 s it is full.
const SLOW = 'rate = 1\nperiod = "1s"\ncapacity = 20';
const LINES = ["0,15", "5,5", "20,0"];
const levelAt = (seconds) => Math.min(20, seconds < 5 ? 5 + seconds : seconds);

test("a token bucket's level is a line at the height that the arithmetic says", async () => {
  const { chart, close } = await play(LINES, SLOW);
  const level = chart(/^Level of p/);
  const { capacity, nothing } = await scale(level);
  const columns = await drawn(level, "accent");
  const seconds = (x) => ((x + 0.5) / columns.length) * 22;
  const wrong = columns.flatMap((runs, x) => {
    const at = seconds(x);
    // The vertical lines of decisions, and what the marked one hides.
    if ([0, 5, 20].some((moment) => Math.abs(moment - at) < 0.1) || at >= 22) return [];
    const expected = nothing + ((capacity - nothing) * levelAt(at)) / 20;
    const [top, bottom] = runs.at(-1) ?? [];
    // Where the bucket is full, the dashed line is under it.
    return Math.abs((top + bottom) / 2 - expected) <= 1.5 ? [] : [`${at} s: ${top} to ${bottom}, not ${expected}`];
  });
  assert.deepEqual(wrong.slice(0, 5), []);
  await close();
});

test("a window's level is drawn as steps", async () => {
  const { chart, close } = await play(
    ["1,8", "7,8", "11,0"],
    'kind = "fixed_window"\nrate = 10\nperiod = "5s"\noffset = "0s"',
  );
  const level = chart(/^Level of p/);
  const { capacity, nothing } = await scale(level);
  const columns = await drawn(level, "accent");
  for (const [seconds, tokens] of [
    [3, 2],
    [4.8, 2],
    [5.2, 10],
    [6.8, 10],
    [8, 2],
    [9.8, 2],
    [10.5, 10],
  ]) {
    const runs = columns[Math.round((seconds / 12.1) * columns.length)];
    const expected = nothing + ((capacity - nothing) * tokens) / 10;
    assert.ok(
      runs.some(([top, bottom]) => Math.abs((top + bottom) / 2 - expected) <= 1.5),
      `${seconds} s: ${JSON.stringify(runs)}, not ${expected}`,
    );
  }
  await close();
});

test("what was admitted is never drawn above its bound, and reaches it when all is taken at once", async () => {
  const flood = Array.from({ length: 400 }, (_, i) => `${(i / 20).toFixed(2)},1`); // 20 a second
  const policies = ['rate = 20\nperiod = "10s"', 'kind = "fixed_window"\nrate = 20\nperiod = "10s"\noffset = "0s"'];
  const { chart, close } = await play(flood, ...policies);
  for (const name of ["p", "q"]) {
    const admitted = chart(new RegExp(`^Admitted by ${name}`));
    const [below, bound] = [await drawn(admitted, "granted"), await drawn(admitted, "bound")];
    const top = (runs) => Math.min(...runs.map(([top]) => top));
    // Where both are at the same height the line hides most of the dash.
    const above = below.flatMap((runs, x) => (runs.length > 0 && top(runs) < top(bound[x]) - 3 ? [x] : []));
    assert.deepEqual(
      above.filter((x) => bound[x].length > 0),
      [],
      name,
    );
    assert.ok(below.filter((runs) => runs.length > 0).length > 0.85 * below.length, "the line is there");
  }
  await close();
});

test("decisions are marks where they were made, granted above and refused below them, with their wait", async () => {
  const { chart, close } = await play(["1,20", "3,9", "5,4", "9,1"], SLOW);
  const level = chart(/^Level of p/);
  const [granted, refused] = [await drawn(level, "granted"), await drawn(level, "refused")];
  const column = (seconds) => Math.round((seconds / 9.9) * granted.length);
  const marks = (columns, from, to) =>
    columns.flatMap((runs, x) =>
      runs.some(([top, bottom]) => top >= from && bottom <= to && bottom > top) ? [x] : [],
    );
  const groups = (xs) => xs.filter((x, i) => x !== xs[i - 1] + 1);
  const isNear = (found, expected) =>
    assert.ok(
      found.length === expected.length && found.every((x, i) => Math.abs(x - column(expected[i])) <= 2),
      `${found}, not ${expected.map(column)}`,
    );
  isNear(groups(marks(granted, 10, 20)), [1, 5, 9]);
  isNear(groups(marks(refused, 18, 28)), [3]);
  // 2 of the 9 tokens are there: refused for 7 seconds, to beyond the end of the chart.
  const waits = refused
    .slice(column(3) + 3, column(9.8))
    .filter((runs) => runs.some(([top, bottom]) => top === bottom));
  assert.ok(waits.length > 0.95 * (column(9.8) - column(3) - 3), "the wait is a line");
  await close();
});

test("every reservation is drawn, however many there are", async () => {
  for (const count of [3, 40]) {
    const lines = Array.from({ length: count }, () => "1,1,reserve");
    const { chart, close } = await play([...lines, "9,0"], 'rate = 100\nperiod = "1s"');
    const held = await drawn(chart(/^Level of p/), "held");
    assert.equal(held[Math.round(held.length / 2)].length, count);
    await close();
  }
});

test("the longest label of an axis is not cut off, even with thousands written out", async () => {
  const { page, close } = await open("", { locale: "de-DE" });
  await page.getByLabel("Tokens added").fill("400000");
  await page.getByLabel("Capacity").fill("400000");
  const level = page.getByRole("img", { name: /^Level of api .* 400\.000$/ });
  await level.waitFor();
  const cut = await level.evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, 2, canvas.height);
    return data.some((value) => value !== 0);
  });
  assert.equal(cut, false);
  await close();
});

/** Beside the plot, in pixels. */
const [LEFT, RIGHT] = [52, 8];
