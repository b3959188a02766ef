// The four dialects as the playground speaks them: what is asked, and how an answer is read.
//
// A form is { model, system, turns, maxTokens, temperature, seed, effort, tools, schema, stream }.
// Turns are { role: "user", text }, { role: "assistant", parts } or { role: "tools", results }.
// A reader keeps parts { kind, text, name, id }, in the order in which they began.

// What somebody wrote cannot be sent; the message says why.
export class Mistake extends Error {}

class Reader {
  constructor() {
    this.parts = [];
    this.open = new Map();
    this.usage = null;
    this.finish = null;
    this.error = null;
  }

  // The part of a kind that goes on, or a new one. A key tells several of a kind apart.
  part(kind, key = kind, fields = {}) {
    let part = this.open.get(key);
    if (part === undefined) {
      part = { kind, text: "", ...fields };
      this.open.set(key, part);
      this.parts.push(part);
    }
    return part;
  }

  add(kind, text, key) {
    if (text) this.part(kind, key).text += text;
  }

  fail(error) {
    this.error = error?.message ?? "The stream ended with an error.";
  }
}

const given = (value) => value !== undefined && value !== null && value !== "";

// Without what has not been filled in.
const filled = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => given(value)));

const textOf = (parts) => parts.filter((part) => part.kind === "text").map((part) => part.text).join("");
const callsOf = (parts) => parts.filter((part) => part.kind === "tool");

function parsed(text) {
  try {
    return JSON.parse(text || "{}");
  } catch {
    return {};
  }
}

// --- Chat Completions ---------------------------------------------------------------------------

class ChatReader extends Reader {
  event(_, data) {
    if (data.error) return this.fail(data.error);
    for (const choice of data.choices ?? []) {
      this.take(choice.delta ?? choice.message ?? {});
      this.finish = choice.finish_reason ?? this.finish;
    }
    if (data.usage) {
      const { prompt_tokens, completion_tokens, prompt_tokens_details, completion_tokens_details } = data.usage;
      this.usage = {
        input: prompt_tokens, output: completion_tokens, cached: prompt_tokens_details?.cached_tokens,
        reasoning: completion_tokens_details?.reasoning_tokens,
      };
    }
  }

  take(delta) {
    this.add("reasoning", delta.reasoning_content);
    this.add("text", delta.content);
    this.add("note", delta.refusal);
    (delta.tool_calls ?? []).forEach((call, at) => {
      const key = `tool ${call.index ?? at}`;
      const part = this.part("tool", key, { id: call.id, name: call.function?.name });
      part.text += call.function?.arguments ?? "";
    });
  }

  body(data) {
    this.event("", data);
  }
}

const chat = {
  name: "Chat Completions",
  path: "/v1/chat/completions",
  conversation: true,
  fields: ["seed", "effort", "tools", "schema"],
  reader: () => new ChatReader(),
  request(form) {
    const messages = form.system ? [{ role: "system", content: form.system }] : [];
    for (const turn of form.turns) {
      if (turn.role === "user") messages.push({ role: "user", content: turn.text });
      else if (turn.role === "tools") {
        messages.push(...turn.results.map(({ id, text }) => ({ role: "tool", tool_call_id: id, content: text })));
      } else {
        const calls = callsOf(turn.parts).map(({ id, name, text }) => ({
          id, type: "function", function: { name, arguments: text },
        }));
        messages.push({ role: "assistant", content: textOf(turn.parts) || null, ...(calls.length && { tool_calls: calls }) });
      }
    }
    return filled({
      model: form.model,
      messages,
      max_completion_tokens: form.maxTokens,
      temperature: form.temperature,
      seed: form.seed,
      reasoning_effort: form.effort,
      tools: form.tools?.map((tool) => ({ type: "function", function: tool })),
      response_format: form.schema && {
        type: "json_schema", json_schema: { name: "answer", strict: true, schema: form.schema },
      },
      stream: form.stream || undefined,
      stream_options: form.stream ? { include_usage: true } : undefined,
    });
  },
};

// --- Responses ----------------------------------------------------------------------------------

class ResponsesReader extends Reader {
  event(name, data) {
    switch (data.type ?? name) {
      case "response.output_item.added":
        if (data.item.type === "function_call") this.call(data.item);
        break;
      case "response.output_text.delta":
        this.add("text", data.delta, `text ${data.output_index} ${data.content_index}`);
        break;
      case "response.refusal.delta":
        this.add("note", data.delta, `refusal ${data.output_index}`);
        break;
      case "response.reasoning_text.delta":
      case "response.reasoning_summary_text.delta":
        this.add("reasoning", data.delta, `reasoning ${data.output_index}`);
        break;
      case "response.function_call_arguments.delta":
        this.part("tool", `tool ${data.item_id}`).text += data.delta;
        break;
      case "response.completed":
      case "response.incomplete":
        this.end(data.response);
        break;
      case "response.failed":
        this.end(data.response);
        this.fail(data.response.error);
        break;
      case "error":
        this.fail(data.error ?? data);
        break;
    }
  }

  call(item) {
    return this.part("tool", `tool ${item.id}`, { id: item.call_id, name: item.name });
  }

  end(response) {
    this.finish = response.incomplete_details?.reason ?? response.status;
    if (response.usage) {
      const { input_tokens, output_tokens, input_tokens_details, output_tokens_details } = response.usage;
      this.usage = {
        input: input_tokens, output: output_tokens, cached: input_tokens_details?.cached_tokens,
        reasoning: output_tokens_details?.reasoning_tokens,
      };
    }
  }

  body(data) {
    for (const [at, item] of (data.output ?? []).entries()) {
      if (item.type === "function_call") this.call(item).text = item.arguments;
      for (const content of item.content ?? []) {
        this.add(item.type === "reasoning" ? "reasoning" : content.type === "refusal" ? "note" : "text", content.text ?? content.refusal, `item ${at}`);
      }
      for (const summary of item.summary ?? []) this.add("reasoning", summary.text, `item ${at}`);
    }
    this.end(data);
    if (data.error) this.fail(data.error);
  }
}

const responses = {
  name: "Responses",
  path: "/v1/responses",
  conversation: true,
  fields: ["effort", "tools", "schema"],
  reader: () => new ResponsesReader(),
  request(form) {
    const input = [];
    for (const turn of form.turns) {
      if (turn.role === "user") input.push({ type: "message", role: "user", content: turn.text });
      else if (turn.role === "tools") {
        input.push(...turn.results.map(({ id, text }) => ({ type: "function_call_output", call_id: id, output: text })));
      } else {
        const text = textOf(turn.parts);
        if (text) input.push({ type: "message", role: "assistant", content: [{ type: "output_text", text }] });
        input.push(...callsOf(turn.parts).map((call) => ({
          type: "function_call", call_id: call.id, name: call.name, arguments: call.text,
        })));
      }
    }
    return filled({
      model: form.model,
      instructions: form.system,
      input,
      max_output_tokens: form.maxTokens,
      temperature: form.temperature,
      reasoning: form.effort ? filled({ effort: form.effort, summary: form.effort === "none" ? "" : "auto" }) : undefined,
      tools: form.tools?.map((tool) => ({ type: "function", ...tool })),
      text: form.schema && { format: { type: "json_schema", name: "answer", strict: true, schema: form.schema } },
      stream: form.stream || undefined,
    });
  },
};

// --- Messages -----------------------------------------------------------------------------------

class MessagesReader extends Reader {
  event(name, data) {
    switch (data.type ?? name) {
      case "message_start":
        this.count(data.message.usage);
        break;
      case "content_block_start":
        this.block(data.content_block, data.index);
        break;
      case "content_block_delta":
        this.delta(data.delta, data.index);
        break;
      case "message_delta":
        this.finish = data.delta.stop_reason ?? this.finish;
        this.count(data.usage);
        break;
      case "error":
        this.fail(data.error);
        break;
    }
  }

  block(block, index) {
    if (block.type === "tool_use") return this.part("tool", `block ${index}`, { id: block.id, name: block.name });
    this.add(block.type === "thinking" ? "reasoning" : "text", block.thinking ?? block.text, `block ${index}`);
    return null;
  }

  delta(delta, index) {
    if (delta.type === "input_json_delta") this.part("tool", `block ${index}`).text += delta.partial_json;
    else if (delta.type === "thinking_delta") this.add("reasoning", delta.thinking, `block ${index}`);
    else if (delta.type === "text_delta") this.add("text", delta.text, `block ${index}`);
  }

  count(usage) {
    if (!usage) return;
    this.usage = {
      input: usage.input_tokens || this.usage?.input, output: usage.output_tokens,
      cached: usage.cache_read_input_tokens ?? this.usage?.cached,
    };
  }

  body(data) {
    (data.content ?? []).forEach((block, index) => {
      const call = this.block(block, index);
      if (call) call.text = JSON.stringify(block.input);
    });
    this.finish = data.stop_reason;
    this.count(data.usage);
  }
}

const messages = {
  name: "Messages",
  path: "/v1/messages",
  conversation: true,
  fields: ["effort", "tools", "schema"],
  headers: { "anthropic-version": "2023-06-01" },
  reader: () => new MessagesReader(),
  request(form) {
    const turns = [];
    for (const turn of form.turns) {
      if (turn.role === "user") turns.push({ role: "user", content: turn.text });
      else if (turn.role === "tools") {
        const results = turn.results.map(({ id, text }) => ({ type: "tool_result", tool_use_id: id, content: text }));
        turns.push({ role: "user", content: results });
      } else {
        const text = textOf(turn.parts);
        const content = text ? [{ type: "text", text }] : [];
        content.push(...callsOf(turn.parts).map((call) => ({
          type: "tool_use", id: call.id, name: call.name, input: parsed(call.text),
        })));
        turns.push({ role: "assistant", content });
      }
    }
    const thinks = form.effort && form.effort !== "none";
    const config = filled({
      effort: thinks ? form.effort : "",
      format: form.schema && { type: "json_schema", schema: form.schema },
    });
    return filled({
      model: form.model,
      max_tokens: form.maxTokens ?? 1024,
      system: form.system,
      messages: turns,
      temperature: form.temperature,
      thinking: thinks ? { type: "adaptive" } : undefined,
      output_config: Object.keys(config).length ? config : undefined,
      tools: form.tools?.map(({ name, description, parameters }) => filled({ name, description, input_schema: parameters })),
      stream: form.stream || undefined,
    });
  },
};

// --- Completions --------------------------------------------------------------------------------

class CompletionsReader extends Reader {
  event(_, data) {
    if (data.error) return this.fail(data.error);
    for (const choice of data.choices ?? []) {
      this.add("text", choice.text);
      this.finish = choice.finish_reason ?? this.finish;
    }
    if (data.usage) this.usage = { input: data.usage.prompt_tokens, output: data.usage.completion_tokens };
  }

  body(data) {
    this.event("", data);
  }
}

// Prompts are token ids here: they are written with commas or spaces between them, or as JSON.
export function tokenIds(text) {
  const words = text.replaceAll(/[[\],]/g, " ").trim().split(/\s+/).filter(Boolean);
  if (!words.every((word) => /^\d+$/.test(word))) {
    throw new Mistake("Completions takes token ids, such as 9707, 11, 1879. For text use another dialect.");
  }
  return words.map(Number);
}

const completions = {
  name: "Completions",
  path: "/v1/completions",
  conversation: false,
  fields: ["seed", "schema"],
  reader: () => new CompletionsReader(),
  request(form) {
    return filled({
      model: form.model,
      prompt: tokenIds(form.turns.at(-1)?.text ?? ""),
      max_tokens: form.maxTokens,
      temperature: form.temperature,
      seed: form.seed,
      json_schema: form.schema,
      stream: form.stream || undefined,
      stream_options: form.stream ? { include_usage: true } : undefined,
    });
  },
};

export const DIALECTS = { chat, responses, messages, completions };
