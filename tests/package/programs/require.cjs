const { exercise } = require("./exercise.mjs");
const { createElement } = require("react");
const { renderToString } = require("react-dom/server");
const tollgate = require("tollgate");
const { useRateLimit } = require("tollgate/react");

const limiter = new tollgate.Limiter({ rate: 3, periodMs: 1000 });
const html = renderToString(createElement(() => `${useRateLimit(limiter).remaining} left`));
exercise(tollgate).then((result) => console.log(JSON.stringify({ html, exercise: result })));
