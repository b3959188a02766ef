// A call written as curl, or for the official Python clients.

const KEY = "HEADRACE_API_KEY";

// What an official client does not know by name goes into `extra_body`.
const CALLS = {
  chat: { client: "openai", method: "chat.completions.create", extra: [] },
  responses: { client: "openai", method: "responses.create", extra: [] },
  messages: { client: "anthropic", method: "messages.create", extra: [] },
  completions: { client: "openai", method: "completions.create", extra: ["json_schema"] },
};

const READ = {
  chat: ["if chunk.choices:", '    print(chunk.choices[0].delta.content or "", end="", flush=True)'],
  completions: ["if chunk.choices:", '    print(chunk.choices[0].text, end="", flush=True)'],
  responses: ['if event.type == "response.output_text.delta":', '    print(event.delta, end="", flush=True)'],
  messages: [
    'if event.type == "content_block_delta" and event.delta.type == "text_delta":',
    '    print(event.delta.text, end="", flush=True)',
  ],
};

const WHOLE = {
  chat: "answer.choices[0].message", completions: "answer.choices[0].text", responses: "answer.output_text", messages: "answer.content",
};

export function curl(dialect, base, body, keyed) {
  const headers = { "content-type": "application/json", ...dialect.headers };
  const lines = [`curl -sS ${body.stream ? "-N " : ""}${quoted(base + dialect.path)}`];
  if (keyed) lines.push(`-H "Authorization: Bearer $${KEY}"`);
  for (const [name, value] of Object.entries(headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  // A text between the two words is taken as it is, whatever is in it.
  lines.push("--data-binary @- <<'BODY'");
  return `${lines.join(" \\\n  ")}\n${JSON.stringify(body, null, 2)}\nBODY\n`;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function python(name, base, body, keyed) {
  const { client, method, extra } = CALLS[name];
  const [library, url] = client === "openai" ? ["OpenAI", `${base}/v1`] : ["Anthropic", base];
  const beside = Object.fromEntries(Object.entries(body).filter(([field]) => extra.includes(field)));
  const fields = Object.entries(body).filter(([field]) => !extra.includes(field));
  if (Object.keys(beside).length) fields.push(["extra_body", beside]);
  const key = keyed ? `os.environ["${KEY}"]` : '"none"';
  const item = name === "chat" || name === "completions" ? "chunk" : "event";
  const lines = [
    ...(keyed ? ["import os", ""] : []),
    `from ${client} import ${library}`,
    "",
    `client = ${library}(base_url=${literal(url)}, api_key=${key})`,
    `${body.stream ? "stream" : "answer"} = client.${method}(`,
    ...fields.map(([field, value]) => `    ${field}=${literal(value, 1)},`),
    ")",
  ];
  if (body.stream) {
    lines.push(`for ${item} in stream:`, ...READ[name].map((line) => `    ${line}`), "print()");
  } else {
    lines.push(`print(${WHOLE[name]})`);
  }
  return `${lines.join("\n")}\n`;
}

// A value of JSON as Python writes it.
function literal(value, depth = 0) {
  const inner = "    ".repeat(depth + 1);
  const outer = "    ".repeat(depth);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const items = list
    ? value.map((one) => literal(one, depth + 1))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, depth + 1)}`);
  const [begin, end] = list ? "[]" : "{}";
  const short = `${begin}${items.join(", ")}${end}`;
  if (short.length < 72 && !short.includes("\n")) return short;
  return `${begin}\n${items.map((item) => `${inner}${item},\n`).join("")}${outer}${end}`;
}
