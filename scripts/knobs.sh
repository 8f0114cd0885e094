# shellcheck shell=bash
# Environment variables as Hydra overrides: which variable sets which option, and how each kind of
# value is checked and written. No defaults live here: an unset or empty variable says nothing.

# variable, kind, option. Kinds: bool; int>=N; real; text; model and data (must exist if local);
# folder (may not exist yet); one:A|B|C.
# shellcheck disable=SC2034  # used by lib.sh
KNOBS='
LOG_PROB_TOP_K                  int>=0  opdvr.log_prob_top_k
TOP_K_STRATEGY                  one:only_stu|only_tch|intersection|union|union-intersection  opdvr.top_k_strategy
REWARD_WEIGHT_MODE              one:student_p|teacher_p|none  opdvr.reward_weight_mode
TAIL_BUCKET                     bool    opdvr.tail_bucket
FULL_VOCABULARY                 one:none|reverse_kl|forward_kl|jensen_shannon  opdvr.full_vocabulary
TEMPERATURE                     real    actor_rollout_ref.rollout.temperature
TEACHER_TEMPERATURE             real    opdvr.teacher_temperature
TEACHER_ENGINE                  one:fsdp|vllm|server  opdvr.teacher_engine
TEACHER_URLS                    text    opdvr.teacher_urls
TEACHER_DEVICES                 int>=0  opdvr.teacher_devices
TEACHER_PARALLEL_SIZE           int>=1  opdvr.teacher_parallel_size
TEACHER_TIMEOUT                 real    opdvr.teacher_timeout
TEACHER_PATIENCE                real    opdvr.teacher_patience
TEACHER_MAX_IN_FLIGHT           int>=1  opdvr.teacher_max_in_flight
CORRECTNESS_GATED               bool    opdvr.correctness_gated
CORRECTNESS_THRESHOLD           real    opdvr.correctness_threshold
CORRECTNESS_GATED_MODE          one:default|inverse|none|soft|margin|leaky|mixed|rescue  opdvr.correctness_gated_mode
GATE_TEMPERATURE                real    opdvr.gate_temperature
GATE_MARGIN                     real    opdvr.gate_margin
GATE_FLOOR                      real    opdvr.gate_floor
GRPO_SCALED                     bool    opdvr.grpo_scaled
GRPO_NORM_BY_STD                bool    opdvr.grpo_norm_by_std
GRPO_SCALE_BASELINE             real    opdvr.grpo_scale_baseline
TRUNCATED_RESPONSES             one:keep|wrong|mask    opdvr.truncated_responses
WATCHDOG                        one:warn|stop|off  opdvr.watchdog
TOKEN_SAMPLES                   int>=0  opdvr.token_samples
STUDENT_LOGPROBS                one:auto|update|recompute|rollout    opdvr.student_logprobs
ADV_ESTIMATOR                   one:token_reward_direct|token_reward_direct_plus_grpo|token_grpo|grpo  algorithm.adv_estimator
N_RESPONSES                     int>=1  actor_rollout_ref.rollout.n
VERIFIER                        text    opdvr.verifier
ANSWER_FORMS                    one:boxed|any  opdvr.answer_forms
MAX_PROMPT_LENGTH               int>=1  data.max_prompt_length
MAX_RESP_LENGTH                 int>=1  data.max_response_length
MAX_VAL_RESP_LENGTH             int>=1  opdvr.max_val_response_length
MINI_BATCH_SIZE                 int>=1  actor_rollout_ref.actor.ppo_mini_batch_size
PARALLEL_SIZE                   int>=1  opdvr.parallel_size
MODEL_DTYPE                     one:bfloat16|float32  opdvr.model_dtype
USE_KL                          bool    opdvr.use_kl
ACTOR_LR                        real    actor_rollout_ref.actor.optim.lr
LORA_RANK                       int>=0  actor_rollout_ref.model.lora_rank
LORA_ALPHA                      int>=1  actor_rollout_ref.model.lora_alpha
VAL_TEMPERATURE                 real    actor_rollout_ref.rollout.val_kwargs.temperature
VAL_TOP_P                       real    actor_rollout_ref.rollout.val_kwargs.top_p
VAL_N                           int>=1  actor_rollout_ref.rollout.val_kwargs.n
TRAIN_DATASET                   data    data.train_files
TEST_DATASET                    data    data.val_files
ACTOR_MODEL_PATH                model   actor_rollout_ref.model.path
REWARD_MODEL_PATH               model   reward_model.model.path
PROJECT_NAME                    text    trainer.project_name
EXPERIMENT_NAME                 text    trainer.experiment_name
FINAL_CKPT_DIR                  folder  trainer.default_local_dir
NGPUS_PER_NODE                  int>=1  trainer.n_gpus_per_node
NNODES                          int>=1  trainer.nnodes
SAVE_FREQ                       int>=-1 trainer.save_freq
TEST_FREQ                       int>=-1 trainer.test_freq
TOTAL_EPOCHS                    int>=1  trainer.total_epochs
TOTAL_STEPS                     int>=1  trainer.total_training_steps
PPO_MAX_TOKEN_LEN_PER_GPU       int>=1  actor_rollout_ref.actor.ppo_max_token_len_per_gpu
LOG_PROB_MAX_TOKEN_LEN_PER_GPU  int>=1  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu
PREFLIGHT                       one:stop|warn|strict|off  opdvr.preflight
DEMO_STUDENT                    one:careless|other-style|other-pretraining  opdvr.demo_student
DEMO_TEACHER                    one:faulty|good  opdvr.demo_teacher
'

# The same of sft.sh.
# shellcheck disable=SC2034  # used by lib.sh
SFT_KNOBS='
ACTOR_MODEL_PATH        model   model.path
TRAIN_DATASET           data    data.train_files
TEST_DATASET            data    data.val_files
BATCH_SIZE              int>=1  data.train_batch_size
MAX_LENGTH              int>=1  data.max_length
MAX_TOKEN_LEN_PER_GPU   int>=1  data.max_token_len_per_gpu
ACTOR_LR                real    optim.lr
LR_SCHEDULE             one:constant|cosine  optim.lr_scheduler_type
WARMUP_RATIO            real    optim.lr_warmup_steps_ratio
LORA_RANK               int>=0  model.lora_rank
LORA_ALPHA              int>=1  model.lora_alpha
MODEL_DTYPE             one:bfloat16|float32  sft.model_dtype
THINKING                bool    sft.thinking
PARALLEL_SIZE           int>=1  engine.ulysses_sequence_parallel_size
PROJECT_NAME            text    trainer.project_name
EXPERIMENT_NAME         text    trainer.experiment_name
FINAL_CKPT_DIR          folder  trainer.default_local_dir
NGPUS_PER_NODE          int>=1  trainer.n_gpus_per_node
SAVE_FREQ               int>=-1 trainer.save_freq
TEST_FREQ               int>=-1 trainer.test_freq
TOTAL_EPOCHS            int>=1  trainer.total_epochs
TOTAL_STEPS             int>=1  trainer.total_training_steps
SEED                    int>=0  trainer.seed
'

# Text as a Hydra override value that arrives as the same text. Always quoted, so that 12, true, a,b
# and run(1) stay text. Between Hydra's quotes a backslash means something only in a run of them
# before a quote, the closing one too: there the run is doubled, and one more escapes the quote.
quote_text() { # TEXT
  local text=$1 out="" run="" i char
  for ((i = 0; i < ${#text}; i++)); do
    char=${text:i:1}
    if [[ $char == \\ ]]; then
      run+=\\
      continue
    fi
    if [[ $char == "'" ]]; then run+=$run\\; fi
    out+=$run$char
    run=""
  done
  printf "'%s'" "$out$run$run"
}

as_bool() { # VARIABLE VALUE
  case ${2,,} in
    true | yes | on | 1) echo True ;;
    false | no | off | 0) echo False ;;
    *) die "$1='$2' is not a yes or no: use True or False" ;;
  esac
}

as_int() { # VARIABLE VALUE MINIMUM
  local sign digits
  if ! [[ $2 =~ ^([+-]?)0*([0-9]{1,18})$ ]]; then die "$1='$2' is not a whole number"; fi
  sign=${BASH_REMATCH[1]#+} digits=${BASH_REMATCH[2]}
  # Without its zeros in front: bash would read 010 as 8, and Hydra 08 as text.
  local number=$((${sign}1 * digits))
  if ((number < $3)); then die "$1=$2 is too small: it must be $3 or more"; fi
  echo "$number"
}

as_real() { # VARIABLE VALUE
  if ! [[ $2 =~ ^([+-]?)0*(([0-9]+)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$ ]]; then
    die "$1='$2' is not a number"
  fi
  local number=${BASH_REMATCH[1]}${BASH_REMATCH[2]}${BASH_REMATCH[5]}
  if [[ $number != *[.eE]* ]]; then number+=.0; fi
  echo "$number"
}

as_one_of() { # VARIABLE VALUE A|B|C
  if [[ $2 == *"|"* || "|$3|" != *"|$2|"* ]]; then die "$1='$2' is unknown: use one of ${3//|/, }"; fi
  echo "$2"
}

expand_home() { # PATH
  case $1 in
    \~ | \~/*) echo "${HOME:?is not set and a path begins with ~}${1:1}" ;;
    *) echo "$1" ;;
  esac
}

# A model is a hub's name or owner/name, or a path. What can only be a path has to exist: looked up
# at the hub, a mistyped folder would end in a message about the network.
as_model() { # VARIABLE VALUE
  local role=student path
  local hub_name='^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)?$'
  if [[ $1 == REWARD_MODEL_PATH ]]; then role=teacher; fi
  path=$(expand_home "$2")
  if [[ ! $path =~ $hub_name && $path != *://* && ! -e $path ]]; then
    die "$1: $role model folder not found: $path"
  fi
  quote_text "$path"
}

# One file, whose name may contain commas, or a Hydra list in brackets, passed on as it is.
as_data() { # VARIABLE VALUE
  local path
  if [[ $2 == "["* ]]; then echo "$2" && return; fi
  path=$(expand_home "$2")
  if [[ $path != *://* && ! -e $path ]]; then die "$1: data file not found: $path (from $PWD)"; fi
  quote_text "$path"
}

# The value of a set variable as its option takes it; dies by one line that names the variable.
knob_value() { # VARIABLE KIND
  local variable=$1 kind=$2 value=${!1}
  case $value in
    *$'\n'* | *$'\r'*) die "$variable contains a line break: an option's value is one line" ;;
    # The configuration is resolved more than once on its way, so no escape would survive.
    *"\${"*) die "$variable contains \${, which the configuration would read as a reference: leave it out" ;;
  esac
  case $kind in
    bool) as_bool "$variable" "$value" ;;
    "int>="*) as_int "$variable" "$value" "${kind#int>=}" ;;
    real) as_real "$variable" "$value" ;;
    one:*) as_one_of "$variable" "$value" "${kind#one:}" ;;
    model) as_model "$variable" "$value" ;;
    data) as_data "$variable" "$value" ;;
    folder) quote_text "$(expand_home "$value")" ;;
    text) quote_text "$value" ;;
  esac
}

# Appends an override to OVERRIDES for every knob of the table that is set.
add_knobs() { # TABLE
  local variable kind option value
  while read -r variable kind option; do
    if [[ -z $variable || -z ${!variable:-} ]]; then continue; fi
    value=$(knob_value "$variable" "$kind")
    OVERRIDES+=("$option=$value")
  done <<<"$1"
}
