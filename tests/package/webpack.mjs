// webpack, for production and as it comes.
import webpack from "webpack";

/** Builds `entry`, which names each program, from one folder into another. Returns what it complained of. */
export async function webpackBuild(folder, entry, path) {
  const compiler = webpack({ mode: "production", context: folder, entry, output: { path } });
  const stats = await new Promise((resolve, reject) =>
    compiler.run((error, stats) => (error ? reject(error) : resolve(stats))),
  );
  await new Promise((resolve) => compiler.close(resolve));
  const { errors, warnings } = stats.toJson({ all: false, errors: true, warnings: true });
  return [...errors, ...warnings].map(({ message }) => message);
}
