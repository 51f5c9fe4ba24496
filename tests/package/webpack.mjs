// webpack in production mode, without configuration except for its recommended page size: React takes most of that.
import webpack from "webpack";

/** Builds the programs in `entry`, an object by name, from one folder into another. Returns errors and warnings. */
export async function webpackBuild(folder, entry, path) {
  const compiler = webpack({ mode: "production", context: folder, entry, output: { path }, performance: PAGE });
  const stats = await new Promise((resolve, reject) =>
    compiler.run((error, stats) => (error ? reject(error) : resolve(stats))),
  );
  await new Promise((resolve) => compiler.close(resolve));
  const { errors, warnings } = stats.toJson({ all: false, errors: true, warnings: true });
  return [...errors, ...warnings].map(({ message }) => message);
}

/** Bytes; 250 000 by default. benches/package watches the package's own size. */
const PAGE = { maxAssetSize: 300_000, maxEntrypointSize: 300_000 };
