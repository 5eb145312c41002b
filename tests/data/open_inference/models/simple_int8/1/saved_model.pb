á
÷É
D
AddV2
x"T
y"T
z"T"
Ttype:
2	€
C
Placeholder
output"dtype"
dtypetype"
shapeshape:
<
Sub
x"T
y"T
z"T"
Ttype:
2	"serve*2.21.02v2.21.0-rc1-5-ga481b10260d
i
INPUT0Placeholder*'
_output_shapes
:ÿÿÿÿÿÿÿÿÿ*
dtype0*
shape:ÿÿÿÿÿÿÿÿÿ
i
INPUT1Placeholder*'
_output_shapes
:ÿÿÿÿÿÿÿÿÿ*
dtype0*
shape:ÿÿÿÿÿÿÿÿÿ
R
OUTPUT0AddV2INPUT0INPUT1*
T0*'
_output_shapes
:ÿÿÿÿÿÿÿÿÿ
P
OUTPUT1SubINPUT0INPUT1*
T0*'
_output_shapes
:ÿÿÿÿÿÿÿÿÿ"ª*à
serving_defaultÌ
)
INPUT0
INPUT0:0ÿÿÿÿÿÿÿÿÿ
)
INPUT1
INPUT1:0ÿÿÿÿÿÿÿÿÿ+
OUTPUT0 
	OUTPUT0:0ÿÿÿÿÿÿÿÿÿ+
OUTPUT1 
	OUTPUT1:0ÿÿÿÿÿÿÿÿÿtensorflow/serving/predict