BEGIN TRANSACTION;
CREATE TABLE attempts (
	run_id TEXT NOT NULL, 
	rollout_id TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	late INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	attempt_index BIGINT NOT NULL, 
	status TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	answer TEXT, 
	reward DOUBLE, 
	failure_cause TEXT, 
	failure_message TEXT, 
	failure_traceback TEXT, 
	stop TEXT, 
	seconds DOUBLE NOT NULL, 
	PRIMARY KEY (run_id, rollout_id, position, late), 
	FOREIGN KEY(run_id, rollout_id) REFERENCES rollouts (run_id, id) ON DELETE CASCADE
);
INSERT INTO "attempts" VALUES('run_a','roll_000000',0,0,'att_0',0,'succeeded','47a3c9a791481f7b926ad0a4472a4627','0.3',1.0,NULL,NULL,NULL,'answer',1.5);
INSERT INTO "attempts" VALUES('run_a','roll_000001',0,0,'att_0',0,'succeeded','47a3c9a791481f7b926ad0a4472a4627','0.3',1.0,NULL,NULL,NULL,'answer',1.5);
INSERT INTO "attempts" VALUES('run_a','retried',0,0,'att_0',0,'failed','0203b515c44dde2d9774cfeee939b4c4','0.3',NULL,'timeout','too slow','Traceback ...','deadline',1.5);
INSERT INTO "attempts" VALUES('run_a','retried',1,0,'att_1',1,'succeeded','5f58fd7d7e7f6f7696334a2d2196d246','0.3',1.0,NULL,NULL,NULL,'answer',1.5);
INSERT INTO "attempts" VALUES('run_a','odd',0,0,'att_0',0,'succeeded','e58be396733210b25c6bbc751889ad00','escaped:half \ud83d a pair, \x00',1.0,NULL,NULL,NULL,'answer',1.5);
INSERT INTO "attempts" VALUES('run_a','roll_000000',0,1,'att_0',0,'succeeded','2ade8d5a3c98e03382765e3caac39a98','late',1.0,NULL,NULL,NULL,'answer',1.5);
CREATE TABLE calls (
	run_id TEXT NOT NULL, 
	rollout_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	late INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	call_index BIGINT NOT NULL, 
	messages TEXT NOT NULL, 
	reply TEXT NOT NULL, 
	sampling TEXT NOT NULL, 
	parse_errors TEXT NOT NULL, 
	prompt_ids BLOB NOT NULL, 
	token_ids BLOB NOT NULL, 
	logprobs BLOB NOT NULL, 
	raw_logprobs BLOB NOT NULL, 
	stop_reason TEXT NOT NULL, 
	policy_version BIGINT NOT NULL, 
	PRIMARY KEY (run_id, rollout_id, attempt, late, position), 
	FOREIGN KEY(run_id, rollout_id, attempt, late) REFERENCES attempts (run_id, rollout_id, position, late) ON DELETE CASCADE
);
INSERT INTO "calls" VALUES('run_a','roll_000000',0,0,0,'chat_0','main',0,'[{"role":"user","content":"What is 0.1 + 0.2?"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','[]',X'0000000001000000020000000300000004000000050000000600000007000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','stop',0);
INSERT INTO "calls" VALUES('run_a','roll_000000',0,0,1,'chat_1','main',1,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',1);
INSERT INTO "calls" VALUES('run_a','roll_000000',0,0,2,'chat_2','main',2,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_1"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F0000001000000011000000120000001300000014000000150000001600000017000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',2);
INSERT INTO "calls" VALUES('run_a','roll_000001',0,0,0,'chat_0','main',0,'[{"role":"user","content":"What is 0.1 + 0.2?"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','[]',X'0000000001000000020000000300000004000000050000000600000007000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','stop',0);
INSERT INTO "calls" VALUES('run_a','roll_000001',0,0,1,'chat_1','main',1,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',1);
INSERT INTO "calls" VALUES('run_a','roll_000001',0,0,2,'chat_2','main',2,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_1"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F0000001000000011000000120000001300000014000000150000001600000017000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',2);
INSERT INTO "calls" VALUES('run_a','retried',0,0,0,'chat_0','main',0,'[{"role":"user","content":"What is 0.1 + 0.2?"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','[]',X'0000000001000000020000000300000004000000050000000600000007000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','stop',0);
INSERT INTO "calls" VALUES('run_a','retried',0,0,1,'chat_1','main',1,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',1);
INSERT INTO "calls" VALUES('run_a','retried',0,0,2,'chat_2','main',2,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_1"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F0000001000000011000000120000001300000014000000150000001600000017000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',2);
INSERT INTO "calls" VALUES('run_a','retried',1,0,0,'chat_0','main',0,'[{"role":"user","content":"What is 0.1 + 0.2?"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','[]',X'0000000001000000020000000300000004000000050000000600000007000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','stop',0);
INSERT INTO "calls" VALUES('run_a','retried',1,0,1,'chat_1','main',1,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',1);
INSERT INTO "calls" VALUES('run_a','retried',1,0,2,'chat_2','main',2,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_1"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F0000001000000011000000120000001300000014000000150000001600000017000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',2);
INSERT INTO "calls" VALUES('run_a','odd',0,0,0,'chat_0','main',0,'[{"role":"user","content":"What is 0.1 + 0.2?"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','[]',X'0000000001000000020000000300000004000000050000000600000007000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','stop',0);
INSERT INTO "calls" VALUES('run_a','odd',0,0,1,'chat_1','main',1,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',1);
INSERT INTO "calls" VALUES('run_a','odd',0,0,2,'chat_2','main',2,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_1"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F0000001000000011000000120000001300000014000000150000001600000017000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',2);
INSERT INTO "calls" VALUES('run_a','roll_000000',0,1,0,'chat_0','main',0,'[{"role":"user","content":"What is 0.1 + 0.2?"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','[]',X'0000000001000000020000000300000004000000050000000600000007000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','stop',0);
INSERT INTO "calls" VALUES('run_a','roll_000000',0,1,1,'chat_1','main',1,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',1);
INSERT INTO "calls" VALUES('run_a','roll_000000',0,1,2,'chat_2','main',2,'[{"role":"user","content":"What is 0.1 + 0.2?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_0"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]},{"role":"tool","content":"0.30000000000000004","tool_call_id":"call_1"}]','{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function","function":{"name":"calculator","arguments":"{\"expression\": \"0.1 + 0.2\"}"}}]}','{"temperature":0.7,"top_p":1.0,"top_k":0,"max_tokens":256,"stop":["</s>"]}','["half a tool call"]',X'000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F0000001000000011000000120000001300000014000000150000001600000017000000',X'0000000001000000020000000300000004000000050000000600000007000000',X'00000000000000809A9999999999B9BF9A9999999999C9BF343333333333D3BF9A9999999999D9BF000000000000E0BF343333333333E3BF676666666666E6BF',X'0000000000000080333333333333D3BF333333333333E3BFCCCCCCCCCCCCECBF333333333333F3BF000000000000F8BFCCCCCCCCCCCCFCBFCDCCCCCCCCCC00C0','length',2);
CREATE TABLE checkpoints (
	run_id TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	path TEXT NOT NULL, 
	PRIMARY KEY (run_id, step), 
	FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "checkpoints" VALUES('run_a',1,'one');
CREATE TABLE metrics (
	run_id TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	data TEXT NOT NULL, 
	PRIMARY KEY (run_id, step), 
	FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "metrics" VALUES('run_a',1,'{"reward":0.5}');
CREATE TABLE resources (
	run_id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	data TEXT NOT NULL, 
	PRIMARY KEY (run_id, name, version), 
	FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "resources" VALUES('run_a','prompt',1,0,'prompt','{"text":"Think."}');
CREATE TABLE rewards (
	run_id TEXT NOT NULL, 
	rollout_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	late INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	value DOUBLE NOT NULL, 
	PRIMARY KEY (run_id, rollout_id, attempt, late, position), 
	FOREIGN KEY(run_id, rollout_id, attempt, late) REFERENCES attempts (run_id, rollout_id, position, late) ON DELETE CASCADE
);
INSERT INTO "rewards" VALUES('run_a','roll_000000',0,0,0,'b',0.1);
INSERT INTO "rewards" VALUES('run_a','roll_000000',0,0,1,'a',0.9);
INSERT INTO "rewards" VALUES('run_a','roll_000001',0,0,0,'b',0.1);
INSERT INTO "rewards" VALUES('run_a','roll_000001',0,0,1,'a',0.9);
INSERT INTO "rewards" VALUES('run_a','retried',1,0,0,'b',0.1);
INSERT INTO "rewards" VALUES('run_a','retried',1,0,1,'a',0.9);
INSERT INTO "rewards" VALUES('run_a','odd',0,0,0,'b',0.1);
INSERT INTO "rewards" VALUES('run_a','odd',0,0,1,'a',0.9);
INSERT INTO "rewards" VALUES('run_a','roll_000000',0,1,0,'b',0.1);
INSERT INTO "rewards" VALUES('run_a','roll_000000',0,1,1,'a',0.9);
CREATE TABLE rollouts (
	run_id TEXT NOT NULL, 
	id TEXT NOT NULL, 
	task TEXT NOT NULL, 
	mode TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	label TEXT NOT NULL, 
	group_id TEXT NOT NULL, 
	group_index BIGINT NOT NULL, 
	status TEXT NOT NULL, 
	PRIMARY KEY (run_id, id), 
	FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	FOREIGN KEY(task) REFERENCES tasks (digest)
);
INSERT INTO "rollouts" VALUES('run_a','roll_000000','565d48eded841bebef684899c97c8a56','train',0,'','g0',0,'succeeded');
INSERT INTO "rollouts" VALUES('run_a','roll_000001','565d48eded841bebef684899c97c8a56','train',0,'','g0',1,'succeeded');
INSERT INTO "rollouts" VALUES('run_a','retried','565d48eded841bebef684899c97c8a56','val',1,'before/greedy','g1',0,'succeeded');
INSERT INTO "rollouts" VALUES('run_a','odd','565d48eded841bebef684899c97c8a56','train',0,'','g0',0,'succeeded');
CREATE TABLE runs (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	recipe TEXT NOT NULL, 
	algorithm TEXT NOT NULL, 
	config TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	folder TEXT NOT NULL, 
	status TEXT NOT NULL, 
	result TEXT, 
	created DOUBLE NOT NULL, 
	updated DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('run_a','sums','rl','grpo','{"steps":3,"lr":1e-06,"tools":["calculator"]}',7,'runs/sums','succeeded','{"status":"finished"}',1000.0,1001.0);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1,'base');
CREATE TABLE tasks (
	digest TEXT NOT NULL, 
	id TEXT NOT NULL, 
	fields TEXT NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "tasks" VALUES('565d48eded841bebef684899c97c8a56','t0','{"question":"What is 0.1 + 0.2?","answer":0.3,"n":[1,null]}');
CREATE TABLE tool_results (
	run_id TEXT NOT NULL, 
	rollout_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	late INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	call_id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	text TEXT NOT NULL, 
	error TEXT, 
	seconds DOUBLE NOT NULL, 
	PRIMARY KEY (run_id, rollout_id, attempt, late, position), 
	FOREIGN KEY(run_id, rollout_id, attempt, late) REFERENCES attempts (run_id, rollout_id, position, late) ON DELETE CASCADE
);
INSERT INTO "tool_results" VALUES('run_a','roll_000000',0,0,0,'call_0','calculator','{}','','invalid_arguments',0.1);
INSERT INTO "tool_results" VALUES('run_a','roll_000000',0,0,1,'call_1','calculator','{"expression": "1"}','1',NULL,0.2);
INSERT INTO "tool_results" VALUES('run_a','roll_000001',0,0,0,'call_0','calculator','{}','','invalid_arguments',0.1);
INSERT INTO "tool_results" VALUES('run_a','roll_000001',0,0,1,'call_1','calculator','{"expression": "1"}','1',NULL,0.2);
INSERT INTO "tool_results" VALUES('run_a','retried',0,0,0,'call_0','calculator','{}','','invalid_arguments',0.1);
INSERT INTO "tool_results" VALUES('run_a','retried',0,0,1,'call_1','calculator','{"expression": "1"}','1',NULL,0.2);
INSERT INTO "tool_results" VALUES('run_a','retried',1,0,0,'call_0','calculator','{}','','invalid_arguments',0.1);
INSERT INTO "tool_results" VALUES('run_a','retried',1,0,1,'call_1','calculator','{"expression": "1"}','1',NULL,0.2);
INSERT INTO "tool_results" VALUES('run_a','odd',0,0,0,'call_0','calculator','{}','','invalid_arguments',0.1);
INSERT INTO "tool_results" VALUES('run_a','odd',0,0,1,'call_1','calculator','{"expression": "1"}','1',NULL,0.2);
INSERT INTO "tool_results" VALUES('run_a','roll_000000',0,1,0,'call_0','calculator','{}','','invalid_arguments',0.1);
INSERT INTO "tool_results" VALUES('run_a','roll_000000',0,1,1,'call_1','calculator','{"expression": "1"}','1',NULL,0.2);
CREATE INDEX rollouts_by_step ON rollouts (run_id, step, label);
CREATE INDEX rollouts_by_id ON rollouts (id);
COMMIT;
