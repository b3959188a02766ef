// The official OpenAI SDK against a running Headrace: what it makes of each kind of answer.
//
// usage: node openai_sdk.mjs PACKAGE BASE_URL; prints one JSON object. PACKAGE is the name under
// which a version of the SDK is installed.
import { report, image, weather } from './scenarios.mjs';

const [, , name, baseURL] = process.argv;
const { default: OpenAI } = await import(name);
const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: 'any', maxRetries: 0 });
const model = 'demo-model';
const say = (text) => [{ role: 'user', content: text }];
const tools = [{ type: 'function', function: { ...weather, parameters: weather.schema, schema: undefined } }];
const person = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' } },
  required: ['name', 'age'],
  additionalProperties: false,
};

await report({
  chat_text: async () => {
    const answer = await client.chat.completions.create({ model, messages: say('[[say:Two words.]]') });
    return [answer.choices[0].message.content, answer.choices[0].finish_reason];
  },
  chat_stream: async () => {
    const stream = await client.chat.completions.create({ model, messages: say('[[say:one two three]]'), stream: true });
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? '';
    return text;
  },
  chat_helper: async () => {
    const stream = client.chat.completions.stream({
      model, messages: say('[[say:one two]]'), stream_options: { include_usage: true },
    });
    const final = await stream.finalChatCompletion();
    return [final.choices[0].message.content, final.choices[0].finish_reason, final.usage.completion_tokens];
  },
  chat_tools: async () => {
    const messages = say('[[tool:get_weather {"city": "Paris"}]]');
    const called = await client.chat.completions.create({ model, messages, tools });
    const message = called.choices[0].message;
    const [call] = message.tool_calls;
    messages.push(message, { role: 'tool', tool_call_id: call.id, content: '18C and sunny' });
    const final = await client.chat.completions.create({ model, messages, tools });
    return [call.function.name, JSON.parse(call.function.arguments), called.choices[0].finish_reason,
      final.choices[0].finish_reason, final.choices[0].message.content.length > 0];
  },
  chat_tools_stream: async () => {
    const stream = client.chat.completions.stream({
      model, messages: say('[[tool:get_weather {"city": "Paris"}]]'), tools,
    });
    const final = await stream.finalChatCompletion();
    const [call] = final.choices[0].message.tool_calls;
    return [call.function.name, JSON.parse(call.function.arguments), final.choices[0].finish_reason];
  },
  chat_forced_tool: async () => {
    const answer = await client.chat.completions.create({
      model, messages: say('anything'), tools, tool_choice: { type: 'function', function: { name: 'get_weather' } },
    });
    return answer.choices[0].message.tool_calls.map((call) => call.function.name);
  },
  chat_schema: async () => {
    const answer = await client.chat.completions.create({
      model, messages: say('Invent a person.'),
      response_format: { type: 'json_schema', json_schema: { name: 'person', strict: true, schema: person } },
    });
    const value = JSON.parse(answer.choices[0].message.content);
    return [typeof value.name, typeof value.age, Object.keys(value).length];
  },
  chat_reasoning: async () => {
    const answer = await client.chat.completions.create({
      model, messages: say('[[think:Hmm, well.]][[say:Yes.]]'), reasoning_effort: 'high',
    });
    return [answer.choices[0].message.reasoning_content, answer.choices[0].message.content];
  },
  chat_vision: async () => {
    const answer = await client.chat.completions.create({
      model: 'demo-vision-model',
      messages: [{ role: 'user', content: [{ type: 'text', text: '[[say:A square.]]' }, { type: 'image_url', image_url: { url: image } }] }],
    });
    return answer.choices[0].message.content;
  },
  responses_text: async () => {
    const answer = await client.responses.create({
      model, input: [{ type: 'message', role: 'user', content: '[[say:Two words.]]' }],
    });
    return [answer.output_text, answer.status];
  },
  responses_helper: async () => {
    const stream = client.responses.stream({ model, input: '[[say:one two]]' });
    const final = await stream.finalResponse();
    return [final.output_text, final.status, final.usage.output_tokens];
  },
  responses_tools: async () => {
    const flat = [{ type: 'function', name: weather.name, description: weather.description, parameters: weather.schema }];
    const input = [{ type: 'message', role: 'user', content: '[[tool:get_weather {"city": "Paris"}]]' }];
    const called = await client.responses.create({ model, input, tools: flat });
    const call = called.output.find((item) => item.type === 'function_call');
    input.push(...called.output, { type: 'function_call_output', call_id: call.call_id, output: '18C and sunny' });
    const final = await client.responses.create({ model, input, tools: flat });
    return [call.name, JSON.parse(call.arguments), final.status, final.output_text.length > 0];
  },
  responses_schema: async () => {
    const answer = await client.responses.create({
      model, input: 'Invent a person.',
      text: { format: { type: 'json_schema', name: 'person', strict: true, schema: person } },
    });
    return Object.keys(JSON.parse(answer.output_text));
  },
  completions: async () => {
    const answer = await client.completions.create({
      model, prompt: [...new TextEncoder().encode('[[say:raw text]]')], max_tokens: 16,
    });
    return [answer.object, answer.choices[0].text];
  },
  models: async () => {
    const ids = [];
    for await (const card of client.models.list()) ids.push(card.id);
    const one = await client.models.retrieve('DEMO-MODEL');
    return [ids.sort(), one.id];
  },
  error_model: async () => {
    try {
      await client.chat.completions.create({ model: 'nobody', messages: say('hi') });
    } catch (error) {
      return [error.constructor.name, error.status, error.code, error.requestID?.startsWith('req_') ?? error.request_id?.startsWith('req_')];
    }
  },
  error_value: async () => {
    try {
      await client.responses.create({ model, input: 'hi', previous_response_id: 'resp_1' });
    } catch (error) {
      return [error.constructor.name, error.status, error.code];
    }
  },
  error_in_stream: async () => {
    try {
      const stream = await client.chat.completions.create({ model, messages: say('[[say:a b c d]][[fail:2]]'), stream: true });
      for await (const _ of stream);
    } catch (error) {
      return [error.constructor.name, error.code];
    }
  },
});
