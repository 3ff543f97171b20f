// openai-node: `runTools`, whole and streamed, and a loop of our own on responses, two turns each.
// Rule: every answer goes back into the history as the SDK gives it.
import { execSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

// The package is not beside this file but where NODE_PATH says, which `import` does not read.
const { default: OpenAI } = createRequire(import.meta.url)("openai");

const client = new OpenAI({ maxRetries: 0 });
const TURNS = (process.env.TURNS ?? "Read the notes.\nRead them again, please. é").split("\n");
const FUNCTIONS = {
  read_file: ({ path }) => readFileSync(path, "utf8"),
  run_shell_command: ({ command }) => execSync(command, { encoding: "utf8" }),
  write_file: ({ path, content }) => (writeFileSync(path, content), `wrote ${content.length} characters`),
};
const PARAMETERS = { read_file: ["path"], run_shell_command: ["command"], write_file: ["path", "content"] };
const SCHEMAS = Object.entries(PARAMETERS).map(([name, names]) => ({
  name,
  description: name,
  parameters: {
    type: "object",
    properties: Object.fromEntries(names.map((each) => [each, { type: "string" }])),
    required: names,
  },
}));

async function runTools(stream) {
  const tools = SCHEMAS.map((schema) => ({
    type: "function",
    function: { ...schema, function: FUNCTIONS[schema.name], parse: JSON.parse },
  }));
  let messages = [{ role: "system", content: `Be brief. Streamed: ${stream}.` }];
  for (const turn of TURNS) {
    messages.push({ role: "user", content: turn });
    const asked = { model: "scripted", stream, messages, tools };
    const runner = client.chat.completions.runTools(asked, { maxChatCompletions: 100 });
    await runner.done();
    messages = [...runner.messages];
    console.log(await runner.finalContent());
  }
}

async function respond(stream) {
  const tools = SCHEMAS.map((schema) => ({ type: "function", strict: false, ...schema }));
  const input = [];
  for (const turn of TURNS) {
    input.push({ role: "user", content: `${turn} Streamed: ${stream}.` });
    for (;;) {
      const asked = { model: "scripted", input, tools, store: false };
      const response = stream
        ? await client.responses.stream(asked).finalResponse()
        : await client.responses.create(asked);
      input.push(...response.output);
      const calls = response.output.filter((item) => item.type === "function_call");
      for (const { name, call_id, arguments: written } of calls) {
        const output = FUNCTIONS[name](JSON.parse(written));
        input.push({ type: "function_call_output", call_id, output });
      }
      if (!calls.length) {
        console.log(response.output_text);
        break;
      }
    }
  }
}

for (const stream of [false, true]) await runTools(stream);
for (const stream of [false, true]) await respond(stream);
