BEGIN TRANSACTION;
CREATE TABLE api_keys (
	key_id VARCHAR NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	tenant_id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	revoked_at FLOAT, 
	PRIMARY KEY (key_id), 
	UNIQUE (sha256), 
	FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
);
CREATE TABLE checkpoints (
	policy_id VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	"view" TEXT NOT NULL, 
	PRIMARY KEY (policy_id, step), 
	FOREIGN KEY(policy_id) REFERENCES policies (policy_id)
);
CREATE TABLE episodes (
	number INTEGER NOT NULL, 
	job_id VARCHAR NOT NULL, 
	episode_id VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	result BLOB NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	captured BLOB NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (job_id, episode_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);
CREATE TABLE events (
	position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	UNIQUE (job_id, seq), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);
INSERT INTO "events" VALUES(1,'job-1',1,1000.0,'{"type":"state","state":"queued","reason":"","error":null,"attempt":0}');
INSERT INTO "events" VALUES(2,'job-2',1,1000.0,'{"type":"state","state":"queued","reason":"","error":null,"attempt":0}');
INSERT INTO "events" VALUES(3,'job-1',2,1000.0,'{"type":"state","state":"starting","reason":"","error":null,"attempt":1}');
INSERT INTO "events" VALUES(4,'job-1',3,1000.0,'{"type":"warning","name":"n","message":"m","count":1,"step":0,"repeated":false}');
CREATE TABLE facts (
	job_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	agent VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (job_id, kind, agent, number, attempt), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);
CREATE TABLE job_policies (
	job_id VARCHAR NOT NULL, 
	agent VARCHAR NOT NULL, 
	policy_id VARCHAR NOT NULL, 
	PRIMARY KEY (job_id, agent), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id), 
	FOREIGN KEY(policy_id) REFERENCES policies (policy_id)
);
INSERT INTO "job_policies" VALUES('job-1','','policy-229cdcc7733b7132');
INSERT INTO "job_policies" VALUES('job-2','','policy-7b727717a4312325');
CREATE TABLE jobs (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id VARCHAR NOT NULL, 
	tenant_id VARCHAR NOT NULL, 
	idempotency_key VARCHAR, 
	request_sha256 VARCHAR, 
	spec TEXT NOT NULL, 
	packs TEXT NOT NULL, 
	client_packs TEXT DEFAULT '[]' NOT NULL, 
	state VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	error TEXT, 
	step INTEGER NOT NULL, 
	policy_version INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	cancel_requested BOOLEAN NOT NULL, 
	pause_requested TEXT, 
	updates TEXT DEFAULT '[]' NOT NULL, 
	budget TEXT, 
	used_seconds FLOAT DEFAULT '0' NOT NULL, 
	used_tokens INTEGER DEFAULT '0' NOT NULL, 
	counted_at FLOAT, 
	furthest_step INTEGER DEFAULT '0' NOT NULL, 
	epoch INTEGER NOT NULL, 
	worker_id VARCHAR, 
	lease_expires_at FLOAT, 
	last_seq INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	UNIQUE (tenant_id, idempotency_key), 
	UNIQUE (job_id), 
	FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
);
INSERT INTO "jobs" VALUES(1,'job-1','ada',NULL,NULL,'{"model":"nano","adapter":{"kind":"lora","rank":8,"alpha":16.0,"rslora":false,"target_modules":[],"vision":false},"initial_policy":"","chat_template":"","optimizer":{"beta1":0.9,"beta2":0.999,"eps":1e-8,"state_bits":32},"sampling":{"temperature":1.0,"max_turn_tokens":64},"steps":5,"seed":0,"checkpoint_every":10,"keep_checkpoints":3,"budget":null,"name":"","evaluate":[],"best_by":"","environment":{"id":"board/TicTacToeVs-v0","kwargs":{}},"environments":[],"limits":{"max_turns":64,"max_episode_tokens":null,"max_context_tokens":null,"step_timeout_seconds":60.0,"episode_timeout_seconds":3600.0},"rollout":"server","system_prompt":null,"environment_prompt":null,"environment_data":{},"reasoning":"keep","executor":"thread","deterministic":false,"on_failure":"drop","max_failed_fraction":0.5,"warn_failed_fraction":0.1,"keep_episodes":null,"client_timeout_seconds":30.0,"parity_threshold":null,"kind":"rl","algorithm":{"learning_rate":0.001,"lr_schedule":"constant","warmup_steps":0,"max_grad_norm":1.0,"weight_decay":0.0,"group_size":8,"groups_per_step":16,"loss":"ppo","aggregation":"token","clip_low":0.2,"clip_high":0.2,"dual_clip":null,"dro_beta":0.1,"entropy_coefficient":0.0,"kl_coefficient":0.0,"kl_estimator":"k3","kl_in":"loss","importance_correction":"none","importance_cap":2.0,"importance_level":"token","overlong_tokens":0,"overlong_penalty":1.0,"mask_truncated":false,"updates_per_step":1,"minibatches":1,"skip_zero_gradient":true,"credit":"episode","discount":1.0,"dynamic_sampling_rounds":0,"name":"grpo","baseline":"group","normalize":"none"},"agents":{},"self_play":false,"updates":"all","collapse_guard":true,"group_rewards":false,"kl_metric_every":null,"shuffle_rewards":false,"max_staleness":0}','{}','[]','starting','',NULL,0,0,1,0,NULL,'[]',NULL,0.0,0,1000.0,0,1,'w',1030.0,3,1000.0,1000.0);
INSERT INTO "jobs" VALUES(2,'job-2','ada',NULL,NULL,'{"model":"nano-vl","adapter":{"kind":"lora","rank":8,"alpha":16.0,"rslora":false,"target_modules":[],"vision":false},"initial_policy":"","chat_template":"","optimizer":{"beta1":0.9,"beta2":0.999,"eps":1e-8,"state_bits":32},"sampling":{"temperature":1.0,"max_turn_tokens":64},"steps":5,"seed":0,"checkpoint_every":10,"keep_checkpoints":3,"budget":null,"name":"","evaluate":[],"best_by":"","environment":{"id":"board/TicTacToeVs-v0","kwargs":{}},"environments":[],"limits":{"max_turns":64,"max_episode_tokens":null,"max_context_tokens":null,"step_timeout_seconds":60.0,"episode_timeout_seconds":3600.0},"rollout":"server","system_prompt":null,"environment_prompt":null,"environment_data":{},"reasoning":"keep","executor":"thread","deterministic":false,"on_failure":"drop","max_failed_fraction":0.5,"warn_failed_fraction":0.1,"keep_episodes":null,"client_timeout_seconds":30.0,"parity_threshold":null,"kind":"rl","algorithm":{"learning_rate":0.001,"lr_schedule":"constant","warmup_steps":0,"max_grad_norm":1.0,"weight_decay":0.0,"group_size":8,"groups_per_step":16,"loss":"ppo","aggregation":"token","clip_low":0.2,"clip_high":0.2,"dual_clip":null,"dro_beta":0.1,"entropy_coefficient":0.0,"kl_coefficient":0.0,"kl_estimator":"k3","kl_in":"loss","importance_correction":"none","importance_cap":2.0,"importance_level":"token","overlong_tokens":0,"overlong_penalty":1.0,"mask_truncated":false,"updates_per_step":1,"minibatches":1,"skip_zero_gradient":true,"credit":"episode","discount":1.0,"dynamic_sampling_rounds":0,"name":"grpo","baseline":"group","normalize":"none"},"agents":{},"self_play":false,"updates":"all","collapse_guard":true,"group_rewards":false,"kl_metric_every":null,"shuffle_rewards":false,"max_staleness":0}','{}','[]','queued','',NULL,0,0,0,0,NULL,'[]',NULL,0.0,0,NULL,0,0,NULL,NULL,1,1000.0,1000.0);
CREATE TABLE parts (
	name VARCHAR NOT NULL, 
	seen_at FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE policies (
	policy_id VARCHAR NOT NULL, 
	tenant_id VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	adapter TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	made_by_job VARCHAR, 
	PRIMARY KEY (policy_id), 
	FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id), 
	FOREIGN KEY(made_by_job) REFERENCES jobs (job_id)
);
INSERT INTO "policies" VALUES('policy-229cdcc7733b7132','ada','nano','{"kind":"lora","rank":8,"alpha":16.0,"rslora":false,"target_modules":[],"vision":false}',1000.0,'job-1');
INSERT INTO "policies" VALUES('policy-7b727717a4312325','ada','nano-vl','{"kind":"lora","rank":8,"alpha":16.0,"rslora":false,"target_modules":[],"vision":false}',1000.0,'job-2');
CREATE TABLE policy_calls (
	job_id VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	request BLOB, 
	request_sha256 VARCHAR NOT NULL, 
	result BLOB, 
	PRIMARY KEY (job_id, seq), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);
CREATE TABLE pools (
	pool_id VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	url VARCHAR NOT NULL, 
	token VARCHAR NOT NULL, 
	seen_at FLOAT NOT NULL, 
	memory_bytes INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (pool_id)
);
CREATE TABLE refused_pools (
	model VARCHAR NOT NULL, 
	error TEXT NOT NULL, 
	refused_at FLOAT NOT NULL, 
	PRIMARY KEY (model)
);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(11);
CREATE TABLE tenants (
	tenant_id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (tenant_id)
);
INSERT INTO "tenants" VALUES('ada','ada',1000.0);
CREATE TABLE versions (
	policy_id VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	train_step INTEGER NOT NULL, 
	weights_sha256 VARCHAR NOT NULL, 
	PRIMARY KEY (policy_id, version), 
	FOREIGN KEY(policy_id) REFERENCES policies (policy_id)
);
CREATE TABLE wanted_pools (
	model VARCHAR NOT NULL, 
	wanted_at FLOAT NOT NULL, 
	PRIMARY KEY (model)
);
CREATE INDEX jobs_by_tenant ON jobs (tenant_id, number);
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE INDEX episodes_by_step ON episodes (job_id, step);
CREATE INDEX policies_by_job ON policies (made_by_job);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',2);
INSERT INTO "sqlite_sequence" VALUES('events',4);
COMMIT;
