import("tollgate").then(async (tollgate) => {
  const { exercise } = await import("./exercise.mjs");
  console.log(JSON.stringify(await exercise(tollgate)));
});
