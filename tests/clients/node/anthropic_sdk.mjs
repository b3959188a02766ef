// The official Anthropic SDK against a running Headrace: what it makes of each kind of answer.
//
// usage: node anthropic_sdk.mjs PACKAGE BASE_URL; prints one JSON object.
import { report, image, weather } from './scenarios.mjs';

const [, , name, baseURL] = process.argv;
const { default: Anthropic } = await import(name);
const client = new Anthropic({ baseURL, apiKey: 'any', maxRetries: 0 });
const model = 'demo-model';
const max_tokens = 256;
const say = (text) => [{ role: 'user', content: text }];
const tools = [{ name: weather.name, description: weather.description, input_schema: weather.schema }];

await report({
  text: async () => {
    const answer = await client.messages.create({ model, max_tokens, messages: say('[[say:Two words.]]') });
    return [answer.content.map((block) => [block.type, block.text]), answer.stop_reason];
  },
  stream: async () => {
    const types = [];
    const stream = await client.messages.create({ model, max_tokens, messages: say('[[say:one]]'), stream: true });
    for await (const event of stream) types.push(event.type);
    return types.filter((type) => type !== 'ping');
  },
  helper: async () => {
    const stream = client.messages.stream({ model, max_tokens, messages: say('[[say:one two]]') });
    const final = await stream.finalMessage();
    return [final.content[0].text, final.stop_reason, final.usage.output_tokens];
  },
  tools: async () => {
    const messages = say('[[tool:get_weather {"city": "Paris"}]]');
    const called = await client.messages.create({ model, max_tokens, messages, tools });
    const call = called.content.find((block) => block.type === 'tool_use');
    messages.push(
      { role: 'assistant', content: called.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: '18C and sunny' }] },
    );
    const final = await client.messages.create({ model, max_tokens, messages, tools });
    return [call.name, call.input, called.stop_reason, final.stop_reason, final.content[0].text.length > 0];
  },
  tools_stream: async () => {
    const stream = client.messages.stream({
      model, max_tokens, messages: say('[[tool:get_weather {"city": "Paris"}]]'), tools,
    });
    const final = await stream.finalMessage();
    const call = final.content.find((block) => block.type === 'tool_use');
    return [call.name, call.input, final.stop_reason];
  },
  forced_tool: async () => {
    const answer = await client.messages.create({
      model, max_tokens, messages: say('anything'), tools, tool_choice: { type: 'tool', name: 'get_weather' },
    });
    return answer.content.filter((block) => block.type === 'tool_use').map((block) => block.name);
  },
  thinking: async () => {
    const answer = await client.messages.create({
      model, max_tokens: 2048, thinking: { type: 'enabled', budget_tokens: 1024 },
      messages: say('[[think:Hmm, well.]][[say:Yes.]]'),
    });
    return answer.content.map((block) => [block.type, block.thinking ?? block.text]);
  },
  stop_sequence: async () => {
    const answer = await client.messages.create({
      model, max_tokens, stop_sequences: ['three'], messages: say('[[say:one two three four]]'),
    });
    return [answer.content[0].text, answer.stop_reason, answer.stop_sequence];
  },
  vision: async () => {
    const answer = await client.messages.create({
      model: 'demo-vision-model', max_tokens,
      messages: [{ role: 'user', content: [
        { type: 'image', source: { type: 'base64', media_type: 'image/png', data: image.split(',')[1] } },
        { type: 'text', text: '[[say:A square.]]' },
      ] }],
    });
    return answer.content[0].text;
  },
  counting: async () => {
    const messages = say('[[say:one]]');
    const counted = await client.messages.countTokens({ model, messages, tools });
    const answer = await client.messages.create({ model, max_tokens, messages, tools });
    return counted.input_tokens === answer.usage.input_tokens;
  },
  beta: async () => {
    const answer = await client.beta.messages.create({
      model, max_tokens, betas: ['some-beta-2026-01-01'], messages: say('[[say:ok]]'),
    });
    return answer.content[0].text;
  },
  models: async () => {
    const ids = [];
    for await (const card of client.models.list()) ids.push(card.id);
    return ids.sort();
  },
  error_model: async () => {
    try {
      await client.messages.create({ model: 'claude-nobody', max_tokens, messages: say('hi') });
    } catch (error) {
      return [error.constructor.name, error.status, error.error?.error?.type, error.error?.error?.code];
    }
  },
  error_in_stream: async () => {
    try {
      const stream = client.messages.stream({ model, max_tokens, messages: say('[[say:a b c d]][[fail:2]]') });
      await stream.finalMessage();
    } catch (error) {
      return [error.constructor.name, /failed to answer/.test(error.message)];
    }
  },
});
